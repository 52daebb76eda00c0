/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The layouts that vanish.bpf.c shares with accel/vanish. */
#ifndef ONPATH_VANISH_H
#define ONPATH_VANISH_H

#include <linux/types.h>

#define VANISH_HALVES 65536

/* state */
#define VANISH_OBSERVE   1 /* note what comes, and leave it to the socket */
#define VANISH_DRAIN     2 /* translate; the sockets still hold bytes */
#define VANISH_TRANSLATE 3
#define VANISH_FORWARD   4 /* translated already: send it on */
#define VANISH_OWN       5 /* of a socket that drains: acknowledge what the other end has */

/* In a key, of packets that leave by the device. */
#define VANISH_LEAVING 0x80000000

/* out */
#define VANISH_NEIGHBOUR 0 /* by a device, to the neighbour that its routes name */
#define VANISH_INTO      1 /* as if it came in at a device */

/* flags */
#define VANISH_CLAMP 0x01 /* echoed timestamps are at least the floor */

/* over */
#define VANISH_FINISHED 0x01 /* this end has sent FIN */
#define VANISH_RESET    0x02 /* this end has sent RST */

/* Where packets of a half come in, and from whom. */
struct vanish_key {
	__u32 ifindex;
	__be32 src, dst;
	__be16 sport, dport;
};

/* What becomes of a packet from one end. */
struct vanish_half {
	__u32 out_ifindex, other_ifindex; /* by which it leaves; where the other end's come in, 0: elsewhere */
	__be32 src, dst;
	__be16 sport, dport;
	__u32 seq_add, ack_add;
	__u32 ts_add, echo_add, echo_floor;
	__u32 own_seq, own_ack; /* drain: the first byte that the socket has not taken, and the end of what it sends */
	__u8 state, out, flags, shift_in, shift_out, over;
	__u8 macs[12];
	__u8 unused[2];
	/* written by the program; the acknowledgement is the latest */
	__u32 seen_stamp, seen_ack;
	__u32 unused2;
	__u64 seen, packets, bytes;
};

#endif
