/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The exam's ebpf function; ExamFunction in function.go says the same in Go. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

#define DROPPED    onpath_be16(6666)
#define REFUSED    onpath_be16(6667)
#define TRANSLATED onpath_be16(6668)
#define BEHIND     onpath_be16(6669)
#define STAMPED    onpath_be16(7100)
#define SCRIBBLED  onpath_be16(7200)
#define LEFTOVER   onpath_be16(7300)

/* DSCP by which it decides in the middle of a flow. */
#define DROPPED_CLASS 60
#define REFUSED_CLASS 61
#define BEHIND_CLASS  62 /* refused once it is translated */

ONPATH_COUNTERS({ __u64 seen; });
ONPATH_NEEDS(ONPATH_DATA);

static const __u8 virtual[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203, 0, 113, 10 };
static const __u8 server[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 2 };

ONPATH_FUNCTION(p)
{
	int forward = p->direction == ONPATH_FORWARD;
	__be16 there = forward ? p->dport : p->sport;
	__u32 at = p->transport;
	__u8 type = 0, code = 0;

	if (at < ONPATH_DATA - 1 && at + 1 < p->shown && !(p->is & (ONPATH_IS_FRAGMENT | ONPATH_IS_PORTLESS)) &&
	    ((p->is & ONPATH_IS_ERROR) || p->protocol == ONPATH_ICMP || p->protocol == ONPATH_ICMPV6)) {
		type = p->data[at];
		code = p->data[at + 1];
	}
	onpath_count(seen, p->segments);
	if (p->dscp == DROPPED_CLASS)
		return onpath_drop(p, 7);
	if (p->dscp == REFUSED_CLASS)
		return onpath_refuse(p, 8);
	if (p->dscp == BEHIND_CLASS && there == BEHIND && forward)
		return onpath_refuse(p, 9);
	if (there == DROPPED)
		return onpath_drop(p, 5);
	if (there == REFUSED)
		return onpath_refuse(p, 6);
	if (there == TRANSLATED && forward)
		onpath_set_destination(p, server, BEHIND);
	if (there == BEHIND && !forward)
		onpath_set_source(p, virtual, TRANSLATED);
	if (there == LEFTOVER && p->shown < 200 && (p->data[200] | p->data[255])) /* of another packet */
		return onpath_drop(p, 11);
	if (p->icmp_type != type || p->icmp_code != code)
		return onpath_drop(p, 12);
	if (there == SCRIBBLED) { /* which nobody else may notice */
		p->sport = p->dport = DROPPED;
		p->dscp = DROPPED_CLASS;
		p->direction = !p->direction;
		p->length = p->wire = p->segments = 7;
		p->protocol = p->family = p->icmp_type = p->icmp_code = 9;
		p->src[15] = p->dst[15] = 99;
	}
	if (there == STAMPED)
		onpath_set_dscp(p, p->dscp << 2 | (p->instance & 3));
	return ONPATH_NEXT;
}
