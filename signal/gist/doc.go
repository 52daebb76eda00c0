// Package gist is GIST (RFC 5971; state machines of RFC 5972): how a signalling message
// finds the next node on the way of a flow, and how answers find the way back. What is too
// long for a datagram goes by a TCP connection between the two nodes.
//
// All of it is pure: an Endpoint is told what came in and what time it is, and says what
// to send. Nothing is kept for a Query: its Response carries a cookie, and only a Confirm
// that brings the cookie back makes state, which ends by itself unless it is refreshed.
//
// Absent on purpose for now: TLS, the loose-end routing method, the Router Alert option.
package gist
