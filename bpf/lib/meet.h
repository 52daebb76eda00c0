/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Mirrors that answers meet. */
#ifndef ONPATH_MEET_H
#define ONPATH_MEET_H

#include "group.h"

#define WALKED 0xffffffff

/* One step of meet_behind: the table behind an element, pkt.table. Returns the
 * mirror found there, by which the answers come in, 0 for another table or a function
 * of this node, or WALKED. */
__noinline __u32 meet_step(void)
{
	struct pkt *p = packet();
	struct group *g;
	__u32 id;

	if (!p || !classify(p->table, 0))
		return WALKED;
	id = p->arg;
	if (p->action == ACT_TABLE) {
		p->table = id;
		return 0;
	}
	if (p->action != ACT_GROUP)
		return WALKED;
	g = bpf_map_lookup_elem(&groups, &id);
	if (!g || !(g->flags & (GROUP_MIRROR | GROUP_INLINE)))
		return WALKED;
	p->table = g->then;
	return g->flags & GROUP_MIRROR ? id ^ 1 : 0;
}

/* Answers to a packet that has left its last element meet, as they come in, the
 * mirrors that it met behind that element, the last one first. */
__noinline int meet_behind(__u32 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	__u32 i, met;
	struct pkt *p = packet();

	if (!g || !p)
		return 0;
	p->back.group = id ^ 1;
	p->table = g->then;
	p->met[0] = p->met[1] = 0;
	for (i = 0; i < MAX_STEPS; i++) {
		met = meet_step();
		if (met == WALKED)
			break;
		if (!met)
			continue;
		p->met[1] = p->met[0];
		p->met[0] = met;
	}
	if (p->met[0] && choose(p->met[0], 1, 0))
		add_mirror(p, &p->back);
	if (p->met[1] && choose(p->met[1], 1, 0))
		add_mirror(p, &p->back);
	return 0;
}

#endif
