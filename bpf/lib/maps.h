/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The maps. Sizes of the hash maps may be changed by the driver before loading. */
#ifndef ONPATH_MAPS_H
#define ONPATH_MAPS_H

#include "vports.h"

/*
 * What was learnt. Names end with the version of the layout. Flows begin in the
 * pending table of their tenant, which replaces the least recently used; once
 * they are known to live (lib/entry.h), both directions move to the table of all,
 * which replaces nothing.
 */
MAP(flows_v2, BPF_MAP_TYPE_HASH, struct flow_key, struct flow, 1 << 18, 0);

struct pending_map {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct flow_key);
	__type(value, struct flow);
	__uint(max_entries, 1 << 13);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, __u32); /* tenant; 0: of nobody */
	__uint(max_entries, MAX_TENANTS);
	__array(values, struct pending_map);
} pending_v2 SEC(".maps");

/* Two of each translation, which lives as long as its flow: nothing makes capacity here but
 * the driver. */
MAP(nats, BPF_MAP_TYPE_HASH, struct flow_key, struct nat, 1 << 18, BPF_F_NO_PREALLOC);
/* Each CPU has a part of its own of these. Where they share one, and each entry is looked up
 * once, as under a flood of addresses, the kernel evicts the youngest first: before its packet
 * is back from an instance, or the second fragment comes. */
MAP(frags, BPF_MAP_TYPE_LRU_HASH, struct frag_key, struct frag, 1 << 12, BPF_F_NO_COMMON_LRU);
MAP(stations, BPF_MAP_TYPE_LRU_HASH, struct addr_key, struct station, 1 << 14, BPF_F_NO_COMMON_LRU);

/* To learn the link addresses of next hops; vport of the key is a device. */
MAP(attempts, BPF_MAP_TYPE_LRU_HASH, struct own_key, struct attempt, 1 << 13, BPF_F_NO_COMMON_LRU);

/* Where a table is full of them, hashing alone decides. The driver's rounds follow the flows. */
MAP(affinities, BPF_MAP_TYPE_HASH, struct affinity_key, struct affinity, 1 << 17, BPF_F_NO_PREALLOC);

/* The configuration; vports.h has the vports. */
MAP(prefilters, BPF_MAP_TYPE_ARRAY, __u32, struct prefilter, 1, BPF_F_MMAPABLE);
MAP(nodes, BPF_MAP_TYPE_ARRAY, __u32, struct node, 1, 0);
MAP(ports, BPF_MAP_TYPE_HASH, __u32, struct port, MAX_VPORTS, BPF_F_NO_PREALLOC);
MAP(owns, BPF_MAP_TYPE_HASH, struct own_key, __u32, MAX_VPORTS * 4, BPF_F_NO_PREALLOC);
MAP(locals, BPF_MAP_TYPE_HASH, struct addr_key, __u32, 4096, BPF_F_NO_PREALLOC);
MAP(peers, BPF_MAP_TYPE_ARRAY, __u32, struct peer, MAX_PEERS, 0);
MAP(peer_addrs, BPF_MAP_TYPE_HASH, struct addr_key, struct peer_ref, MAX_PEERS, BPF_F_NO_PREALLOC);
MAP(table_ids, BPF_MAP_TYPE_HASH, __u32, __u32, MAX_TABLES, BPF_F_NO_PREALLOC);
MAP(tables, BPF_MAP_TYPE_ARRAY, __u32, struct table, MAX_TABLES, BPF_F_MMAPABLE);
MAP(rules, BPF_MAP_TYPE_ARRAY, __u32, struct rule, MAX_RULES, BPF_F_MMAPABLE);
MAP(groups, BPF_MAP_TYPE_HASH, __u32, struct group, 1 << 15, BPF_F_NO_PREALLOC);
MAP(weights, BPF_MAP_TYPE_HASH, struct weights_key, struct weights, 1 << 15, BPF_F_NO_PREALLOC);
MAP(paths, BPF_MAP_TYPE_ARRAY, __u32, struct path, MAX_PATHS, 0);
MAP(functions, BPF_MAP_TYPE_ARRAY, __u32, struct function, MAX_FUNCTIONS, 0);
MAP(tenants, BPF_MAP_TYPE_ARRAY, __u32, struct tenant, MAX_TENANTS, 0);
MAP(quotas, BPF_MAP_TYPE_ARRAY, __u32, struct quota, MAX_TENANTS, 0);
MAP(admissions, BPF_MAP_TYPE_ARRAY, __u32, struct admission, MAX_TENANTS, 0);

/* Tables with more rules than SMALL_TABLE, each in a map of its own size. */
struct forest {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct rule); /* a cell of any kind */
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__type(key, __u32);
	__uint(max_entries, MAX_FORESTS);
	__array(values, struct forest);
} forests SEC(".maps");

/* The fast path. */
MAP(fasts, BPF_MAP_TYPE_ARRAY, __u32, struct fast, 1, 0);
MAP(uplinks, BPF_MAP_TYPE_ARRAY, __u32, struct uplink, MAX_UPLINKS, 0);
MAP(uplink_stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct uplink_counters, MAX_UPLINKS, 0);
MAP(hops, BPF_MAP_TYPE_ARRAY, __u32, struct hop_slot, MAX_HOPS, 0);
MAP(hop_slots, BPF_MAP_TYPE_HASH, struct hop, __u32, MAX_HOPS, BPF_F_NO_PREALLOC);
MAP(hops_taken, BPF_MAP_TYPE_ARRAY, __u32, __u32, 1, 0);

/* What was counted. */
MAP(vport_stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct vport_counters, MAX_VPORTS, 0);
MAP(path_stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct path_counters, MAX_PATHS, 0);
MAP(function_stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct function_counters, MAX_FUNCTIONS, 0);
MAP(tenant_stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct tenant_counters, MAX_TENANTS, 0);
MAP(total_stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct totals, 1, 0);
MAP(error_limits, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct error_limit, MAX_TENANTS, 0);
MAP(recent_errors, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct recent, RECENT, 0);

/* Programs that others go on with. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, STAGES);
	__uint(key_size, 4);
	__uint(value_size, 4);
} stages SEC(".maps");

/*
 * The dispatchers: a program may use 64 maps, and functions bring their own, so they
 * are divided among several. The first one is that of STAGE_FUNCTIONS.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, MAX_FUNCTIONS);
	__uint(key_size, 4);
	__uint(value_size, 4);
} shards SEC(".maps");

/* Single flows, as long as somebody watches them. */
MAP(watches, BPF_MAP_TYPE_ARRAY, __u32, struct watch, MAX_WATCHES, 0);
MAP(watch_stats, BPF_MAP_TYPE_PERCPU_HASH, struct watch_key, struct watch_counters, 4096, 0);

/* Copies of packets for a capture. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} captures SEC(".maps");

#endif
