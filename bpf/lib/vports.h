/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The vports: slots with what is known of each, and which slot an id has. */
#ifndef ONPATH_VPORTS_H
#define ONPATH_VPORTS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../abi.h"

#define MAP(name_, type_, key_, value_, max_, flags_)	\
	struct {					\
		__uint(type, type_);			\
		__type(key, key_);			\
		__type(value, value_);			\
		__uint(max_entries, max_);		\
		__uint(map_flags, flags_);		\
	} name_ SEC(".maps")

MAP(vports, BPF_MAP_TYPE_ARRAY, __u32, struct vport, MAX_VPORTS, 0);
MAP(slots, BPF_MAP_TYPE_HASH, __u32, __u32, MAX_VPORTS, BPF_F_NO_PREALLOC);

#endif
