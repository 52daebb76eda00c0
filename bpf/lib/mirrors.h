/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Mirrors that replies meet. */
#ifndef ONPATH_MIRRORS_H
#define ONPATH_MIRRORS_H

#include "group.h"

#define WALK_ENDED 0xffffffff

/* One step of mirrors_behind: the table behind an element, pkt.table. Returns the
 * mirror found there, by which the replies come in, 0 for another table or a function
 * of this node, or WALK_ENDED. */
__noinline __u32 mirror_step(void)
{
	struct pkt *p = packet();
	struct group *g;
	__u32 id;

	if (!p || !classify(p->table, 0))
		return WALK_ENDED;
	id = p->arg;
	if (p->action == ACT_TABLE) {
		if (id <= LAST_CLASSIFIER && (p->d.flags & FLOW_ADOPTED))
			return WALK_ENDED; /* the flow passes by the other tier's chain */
		p->table = id;
		return 0;
	}
	if (p->action != ACT_GROUP)
		return WALK_ENDED;
	g = bpf_map_lookup_elem(&groups, &id);
	if (!g || !(g->flags & (GROUP_MIRROR | GROUP_INLINE)))
		return WALK_ENDED;
	p->table = g->then;
	return g->flags & GROUP_MIRROR ? id ^ 1 : 0;
}

/* Replies to a packet that has left its last element meet, as they come in, the
 * mirrors that it met behind that element, the last one first. */
__noinline int mirrors_behind(__u32 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	__u32 i, group;
	struct pkt *p = packet();

	if (!g || !p)
		return 0;
	p->back.group = id ^ 1;
	p->table = g->then;
	p->mirror_groups[0] = p->mirror_groups[1] = 0;
	for (i = 0; i < MAX_STEPS; i++) {
		group = mirror_step();
		if (group == WALK_ENDED)
			break;
		if (!group)
			continue;
		p->mirror_groups[1] = p->mirror_groups[0];
		p->mirror_groups[0] = group;
	}
	if (p->mirror_groups[0] && choose(p->mirror_groups[0], 1, 0))
		add_mirror(p, &p->back);
	if (p->mirror_groups[1] && choose(p->mirror_groups[1], 1, 0))
		add_mirror(p, &p->back);
	return 0;
}

#endif
