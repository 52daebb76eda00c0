/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * How many flows a tenant may begin. To begin one costs entries in every table on its
 * way; so whoever begins very many takes the node's time, also from flows that it
 * knows. What is over the limit is refused as soon as the tenant is known: before a
 * member is chosen, and before anything is written.
 *
 * The limit is a token bucket in one word, as virtual scheduling keeps it (ITU-T
 * I.371): the time at which the next flow is due, which each flow moves on by an
 * interval, and which may be ahead of the clock by a burst. CPUs that begin flows at
 * the same time add up, none of them waits, and no interval is lost; between look and
 * addition each can begin one too many, which is made good by the next. To refuse is
 * to read.
 */
#ifndef ONPATH_ADMISSION_H
#define ONPATH_ADMISSION_H

#include "group.h"

static __always_inline void count_refused(__u32 tenant, __u32 packets)
{
	struct tenant_counters *c = bpf_map_lookup_elem(&tenant_stats, &tenant);

	if (c)
		c->refused += packets;
}

/* May the tenant begin a flow with this packet? Then it has. A flow whose entry led
 * nowhere does not begin: it goes on. */
static __always_inline int admit_flow(const struct pkt *p, __u32 tenant)
{
	struct tenant *t = bpf_map_lookup_elem(&tenants, &tenant);
	struct admission *admission = bpf_map_lookup_elem(&admissions, &tenant);
	__u64 now, due;

	if (!t || !admission || !t->interval || p->anew)
		return 1;
	/* Not the coarse clock: each of its ticks would let hundreds begin at once, for
	 * whom instances have no capacity in their queues. */
	now = bpf_ktime_get_ns() << ADMISSION_SHIFT;
	due = *(volatile __u64 *)&admission->due;
	if (is_beyond(due, now, t->burst)) {
		if (*(volatile __s64 *)&admission->spare > 0) {
			__sync_fetch_and_add(&admission->spare, -1);
			return 1;
		}
		count_refused(tenant, p->packets);
		return 0;
	}
	if (is_past(due, now)) /* what was not begun in time is not made up for */
		__sync_val_compare_and_swap(&admission->due, due, now);
	__sync_fetch_and_add(&admission->due, t->interval);
	return 1;
}

/* Is this TCP in the middle of a connection, and the path so young that such are
 * passed by, or cut? What an instance begins is not. */
static __always_inline int older_than(const struct pkt *p, const struct path *path)
{
	return (p->is & IS_TCP) && !(p->is & (IS_SYN | IS_ERROR)) && ((p->is & IS_EDGE) || p->d.context) &&
	       p->clock < path->adopt_until;
}

/*
 * A walk has halted at a rule that begins a chain. It goes on if the chain's tenant may
 * begin a flow; likewise where the operator's chain leads into a tenant's. It stays there,
 * HALTED, if the connection is older than the chain. admitted: a tenant whose limit is not
 * looked at, or EVERYBODY. Returns as resolve.
 */
__noinline int admit_walk(__u32 admitted)
{
	struct pkt *p = packet();
	int rc = DROP_NO_TABLE;
	struct path *path;
	__u32 slot, i;

	if (!p)
		return rc;
	for (i = 0; i < MAX_TIERS; i++) {
		slot = p->rule_path_slot;
		path = bpf_map_lookup_elem(&paths, &slot);
		if (path && path->id == p->rule_path && older_than(p, path))
			return HALTED;
		if (path && admitted != EVERYBODY && path->tenant != admitted) {
			admitted = path->tenant;
			if (!admit_flow(p, admitted))
				return DROP_NEW_FLOWS;
		}
		p->halt = i + 1 < MAX_TIERS;
		rc = resolve_on();
		p->halt = 0;
		if (rc != HALTED)
			break;
	}
	return rc;
}

#endif
