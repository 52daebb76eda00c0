/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * ebpf functions in the fast path: what lib/fast.h hands over to the dispatcher at
 * XDP (functions.bpf.c), and what that leaves to tc.
 */
#ifndef ONPATH_INLINE_H
#define ONPATH_INLINE_H

#include "entry.h"
#define ONPATH_HOST
#include "../../sdk/onpath.h"

/* What functions are shown, one at a time per CPU, and may write in. */
struct description {
	struct onpath_packet a;
	__u32 tenant; /* of the last one */
	__u32 pad;
};

/* A function of a tenant is about to see it: what is left there of a packet that another
 * tenant's was shown, or of what that wrote, goes. By itself, or it would take the stack of
 * its caller. */
__noinline int clear_for(struct description *d, __u32 tenant)
{
	if (!d)
		return 0;
	__builtin_memset(&d->a, 0, sizeof(d->a));
	d->tenant = tenant;
	return 0;
}

static __always_inline void show_to(struct description *d, const struct function *f)
{
	if (d->tenant != f->tenant)
		clear_for(d, f->tenant);
}

/* A packet between the programs of one CPU. */
struct fast_run {
	struct description d;
	/* The packet as it is now. */
	__u8 src[16];
	__u8 dst[16];
	__be16 sport;
	__be16 dport;
	__u8 protocol;
	__u8 direction;
	__u8 family;
	__u8 pad;
	__u32 length;
	__u64 now;
	__u8 functions[MAX_INLINE] __attribute__((aligned(8)));
	__u32 hop;
	__u32 path; /* slot */
	__u32 edge_slot;
	__u32 edited; /* a function changed an address or a port */
	/* The tuple as the packet came, once it is changed. */
	__u8 came_src[16];
	__u8 came_dst[16];
	__be16 came_sport;
	__be16 came_dport;
	__u32 next; /* from one dispatcher to another: item of the list and 1; else 0 */
};

MAP(fast_runs, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct fast_run, 1, 0);

/* The dispatcher at XDP. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, FAST_STAGES);
	__uint(key_size, 4);
	__uint(value_size, 4);
} fast_stages SEC(".maps");

/* The same as banks, at XDP. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, MAX_FUNCTIONS);
	__uint(key_size, 4);
	__uint(value_size, 4);
} fast_shards SEC(".maps");

/*
 * What stands before a frame that functions at XDP have seen and that tc finishes;
 * nobody else can put it there but other XDP programs of the same device.
 */
struct fast_note {
	__u32 magic;
	__u16 what;
	__u16 path; /* slot */
	__u32 mtu;  /* of NOTE_BIG */
};

#define NOTE_MAGIC  0x6f70a55f
#define NOTE_REFUSE 1 /* tell the sender */
#define NOTE_LEAVE  2 /* out at the edge, by a route that XDP did not find */
#define NOTE_BIG    3 /* tell the sender that it is too big */

#endif
