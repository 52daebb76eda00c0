// Package gist is GIST in datagram mode (RFC 5971; state machines of RFC 5972): how a
// signalling message finds the next node on the way of a flow, and how answers find the
// way back.
//
// All of it is pure: an Endpoint is told what came in and what time it is, and says what
// to send. Nothing is kept for a Query: its Response carries a cookie, and only a Confirm
// that brings the cookie back makes state, which ends by itself unless it is refreshed.
//
// Absent on purpose for now: connection mode (messaging associations over TCP and TLS),
// the loose-end routing method, the Router Alert option.
package gist
