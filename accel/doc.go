// Package accel relays TCP connections, so that slow start runs over several short legs
// instead of one long one (MOSTO §III).
//
// One process on a node plays every role. As ingress it takes connections over that pass
// its node, with the origin's own address as the local one. It asks its Router for the
// relays to use (look-up). As transport and egress it takes legs from other nodes' relays:
// each such leg begins with a PROXY protocol v2 header, signed with the nodes' secret,
// that names client, origin and the relays still to come. Whoever cannot sign is refused,
// so no relay is open to strangers.
//
// The next leg is opened when the client's SYN arrives, and not when its connection is
// complete: Intercept watches the SYNs, and a leg between relays carries its header in its
// own SYN (TCP fast open, RFC 7413).
//
// Where clients wait for their origin, or places are scarce, the kernel answers no SYN by itself:
// the listener drops what does not come by lo, and a SYN comes by lo once it may be answered.
package accel
