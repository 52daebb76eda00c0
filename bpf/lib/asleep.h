/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Sleeping instances: what is for one goes to the agent by the punt port (lib/punt.h), which
 * keeps it, starts the program and lets the packets in. A frame there has the destination
 *
 *   02:6f, PUNT_REASON + PUNT_ASLEEP, the vport (24 bits, big endian)
 *
 * and the source that the instance will see. While the last ones are on their way
 * (VPORT_WAKING), packets go there too, so that none overtakes another: until the agent is
 * done with all that went there.
 */
#ifndef ONPATH_ASLEEP_H
#define ONPATH_ASLEEP_H

#include "punt.h"
#include "rewrite.h"

MAP(asleep, BPF_MAP_TYPE_ARRAY, __u32, __u32, MAX_VPORTS * ASLEEP_COUNTS, 0);

/* Must a packet go to the agent, if so many packets were handed over before it? */
static __always_inline int goes_to_agent(const struct vport *v, const __u32 *taken, __u32 before)
{
	__u16 flags = *(volatile __u16 *)&v->flags;

	return (flags & VPORT_ASLEEP) && !((flags & VPORT_WAKING) && *(volatile __u32 *)taken == before);
}

/* Must a packet for the instance in a slot go to the agent? Then it counts as handed over. The
 * agent writes how many packets it has taken, then reads how many were handed over, and has
 * packets go to the instance if the numbers are equal. The program counts first and reads the
 * agent's number then: one of the two sees what the other has written. */
static __always_inline int sleeps(const struct vport *v, __u32 slot)
{
	__u32 at = slot * ASLEEP_COUNTS + ASLEEP_TAKEN, *taken, *handed;

	if (!(v->flags & VPORT_ASLEEP))
		return 0;
	taken = bpf_map_lookup_elem(&asleep, &at);
	at = slot * ASLEEP_COUNTS + ASLEEP_HANDED;
	handed = bpf_map_lookup_elem(&asleep, &at);
	if (!taken || !handed || !goes_to_agent(v, taken, *(volatile __u32 *)handed))
		return 0;
	if (goes_to_agent(v, taken, __sync_fetch_and_add(handed, 1)))
		return 1;
	__sync_fetch_and_add(handed, -1);
	return 0;
}

/* Address a frame to an instance; the device it goes to. */
static __always_inline __u32 address_to(struct __sk_buff *skb, const struct vport *v, __u32 slot)
{
	__u8 agent[6] = {0x02, 0x6f, PUNT_REASON + PUNT_ASLEEP, v->id >> 16, v->id >> 8, v->id};
	__u32 zero = 0;
	struct punt *u;

	set_macs(skb, v);
	if (!sleeps(v, slot))
		return v->ifindex;
	bpf_skb_store_bytes(skb, 0, agent, sizeof(agent), 0);
	u = bpf_map_lookup_elem(&punts, &zero);
	return u ? u->ifindex : 0;
}

#endif
