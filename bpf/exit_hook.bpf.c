/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Closes an instance's vports at the moment its program ends, in the context of
 * the last of its threads that does, or of who kills it. An agent that has to be
 * notified, wake up and write a map is too late by all that on a busy machine, and
 * packets are lost as long. The agent is notified as well, and does everything
 * else.
 */
#include "lib/vports.h"

#define CORE __attribute__((preserve_access_index))

struct signal_struct {
	struct {
		int counter;
	} live; /* threads that have not begun to end */
} CORE;

struct task_struct {
	struct task_struct *group_leader;
	struct signal_struct *signal;
} CORE;

/* What to close is kept with the process itself, which the driver names by a
 * handle: numbers differ between PID namespaces, and are used again. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct exit_hook);
} exit_hooks SEC(".maps");

static __always_inline void close_vport(__u32 id)
{
	__u32 *slot = bpf_map_lookup_elem(&slots, &id);
	struct vport *v;

	if (!id || !slot)
		return;
	v = bpf_map_lookup_elem(&vports, slot);
	if (v && v->id == id && v->kind == VPORT_INSTANCE)
		v->state = STATE_CLOSED;
}

static __always_inline void close_of(struct task_struct *task)
{
	struct exit_hook *e = bpf_task_storage_get(&exit_hooks, task->group_leader, 0, 0);

	if (!e)
		return;
	e->begun = 1; /* first: who opens looks at this afterwards */
	barrier();
	close_vport(e->vports[0]);
	close_vport(e->vports[1]);
}

SEC("tp_btf/sched_process_exit")
int onpath_exit(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];

	if (!task->signal->live.counter)
		close_of(task);
	return 0;
}

#define SIGNAL_KILL      9
#define SIGNAL_DELIVERED 0 /* TRACE_SIGNAL_DELIVERED: neither ignored nor pending already */

/* A killed program does nothing more, but where all CPUs are busy it waits for one
 * to end; what it was sent until then would be lost. */
SEC("tp_btf/signal_generate")
int onpath_killed(__u64 *ctx)
{
	if ((int)ctx[0] == SIGNAL_KILL && (int)ctx[4] == SIGNAL_DELIVERED)
		close_of((struct task_struct *)ctx[2]);
	return 0;
}

char _license[] SEC("license") = "GPL";
