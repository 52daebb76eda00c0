/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The layouts and numbers that the programs share with the driver
 * (datapath/ebpf/abi.go). Nothing else may be assumed by both sides. The driver
 * makes pinned maps anew whose sizes differ; so what changes its meaning must
 * change its size.
 *
 * Byte order: addresses and ports of flow keys stand as on the wire, all other
 * integers in host order, little-endian. Addresses are sixteen bytes everywhere,
 * IPv4 ones mapped (::ffff:a.b.c.d, RFC 4291 §2.5.5.2), which no packet may carry
 * as IPv6.
 */
#ifndef ONPATH_ABI_H
#define ONPATH_ABI_H

#include <linux/types.h>

#define MAX_VPORTS   8192  /* slots; slot 0 stands for "no known vport" */
#define MAX_PATHS    4096  /* slots; slot 0 stands for "no path" */
#define MAX_PEERS    1024
#define MAX_TENANTS  4096
#define MAX_MEMBERS  128   /* of one group */
#define MAX_TABLES   32768
#define MAX_RULES    65536 /* cells of all small tables, with a miss for each */
#define SMALL_TABLE  16    /* rules; larger tables are forests */
#define MAX_FORESTS  8192
#define MAX_TUPLES   24    /* of a forest, for one packet */
#define MAX_DEPTH    8     /* nodes of a tree, for one packet */
#define MAX_LEAF     8     /* rules behind it */
#define MAX_STEPS    40    /* tables walked for one packet */
#define MAX_TIERS    2     /* chains that take up one packet */
#define MAX_MIRRORS  2     /* before one inline element */
#define MAX_ROUTERS  4    /* found without a look-up; others take longer */
#define MAX_NAT      16    /* prefixes */
#define MAX_INLINE   8     /* functions in a row */
#define MAX_FUNCTIONS 128  /* slots in the dispatcher; slot 0 stands for none */

#define FAMILY_4 4
#define FAMILY_6 6

/* What a flow entry leads to; the order of the driver's nextKinds. */
enum next_kind {
	NEXT_NONE = 0,
	NEXT_VPORT,
	NEXT_EXIT,    /* out at this node's edge */
	NEXT_PASS,    /* the kernel's ordinary forwarding */
	NEXT_PENDING, /* context only: nothing came out of the instance yet */
	NEXT_DROP,
};

/* Bits of flow.flags. */
#define FLOW_REVERSE 0x01 /* against the chain's from/to */
#define FLOW_FIN     0x02 /* TCP: FIN seen in this direction */
#define FLOW_RST     0x04 /* TCP: RST seen */
#define FLOW_EMITTED 0x08 /* an instance began it: without context */
#define FLOW_AT_EDGE 0x10 /* of the node's edge */
#define FLOW_LEARNED 0x20 /* written for the replies, not by a choice */
#define FLOW_KNOWN   0x40 /* pending, context only: of a flow that came here from another instance */
#define FLOW_ADOPTED 0x40 /* decided: led past a chain that is younger than the connection */
#define FLOW_BYPASS  0x80 /* pass entries: an element without instance was bypassed */

struct flow_key {
	__u32 scope : 24; /* vport where the packet comes from */
	__u32 proto : 8;
	__u8 src[16];
	__u8 dst[16];
	__be16 sport;
	__be16 dport;
};

/*
 * What is known of one direction of a flow at one vport: 40 bytes of key and 48
 * of value, so that both directions take 304 bytes of a hash table. Packed, hence
 * read and written by the functions of lib/entry.h alone.
 */
struct flow {
	__u32 next : 24;    /* vport */
	__u32 kind : 8;
	/* The low 13 bits: of next; valid while vports[slot].id == next. Above, the high bits
	 * of the generation, and SYN_NOTED. */
	__u16 slot;
	/* The low 12 bits: slot; 0: of no path. A slot is not given to another path before the
	 * entries are gone. Above, the low bits of the generation (entry_generation). */
	__u16 path;
	__u32 context : 24; /* group by which the packet came to scope's instance; 0 at an edge */
	__u32 flags : 8;
	/* The edge vport where the flow entered. With FLOW_AT_EDGE that is this
	 * node's, or by EDGE_HERE none, and here stands TCP's last acknowledgement
	 * number, host order. */
	__u32 entry;
	__u32 seen : 24;    /* seconds of the monotonic clock, modulo 2^24 */
	__u32 group : 8;    /* of path, by which next was chosen: CHOSEN and its low 6 bits; 0: by none. REOPENED */
	__u16 mirrors[MAX_MIRRORS]; /* slots; above 13 bits, the low 3 of the vport's id */
	/* With FLOW_AT_EDGE the high bits here are a next hop, else an
	 * acknowledgement number; see entry_hop and entry_note_ack. */
	__u64 packets;      /* low 48 bits: wire segments; high 16: hop, or bits 31 to 16 */
	__u64 bytes;        /* low 56 bits; high 8: epoch of hop, or bits 15 to 8 */
	__u8 functions[MAX_INLINE]; /* slots in the dispatcher, in order, up to the first 0, and INLINE_BYPASS */
};

/* In flow.kind, above the kind. */
#define EDGE_HERE 0x10 /* with FLOW_AT_EDGE: out here, whatever edge the flow entered at */
#define SYN_REPLIED  0x20 /* not adopted: next is a vport out of which the other direction's SYN has come */
#define HANDSHAKE 0x40 /* TCP: the acknowledgement number is not one that came, but one that has to come */
#define REPLIED   0x80 /* a packet of the other direction has gone to where this one's come from */
#define KIND_MASK 0x0f

/* In flow.slot: a SYN has come by the entry, which is stale (begin_anew). */
#define SYN_NOTED 0x8000
#define GENERATIONS 63 /* they have six bits; 0: of none, or an earlier one */

/* In flow.group, above element and direction. */
#define CHOSEN 0x40
#define REOPENED  0x80 /* a connection came out of next, which was closed here */

#define SEEN_MASK 0xffffff

/* Translation at the edge: the key as flow_key, seen before translation. */
struct nat {
	__u8 addr[16]; /* new source (going out) or new destination (coming in) */
	__be16 port;
	__u8 in;       /* 1: rewrite the destination */
	__u8 state;    /* NAT_…, of this half's packets */
	__u32 seen;    /* as a flow's; with NAT_ACKED the high 8 bits of an acknowledgement number above it */
};

/* What was seen of a translation, each half for itself. */
#define NAT_NOTED 0x01 /* by a program that notes it */
#define NAT_USED  0x02 /* a packet has come */
#define NAT_MORE  0x04 /* and another one */
#define NAT_FIN   0x08
#define NAT_RST   0x10
#define NAT_ACKED 0x20 /* going out: TCP's last acknowledgement number, in seen and NAT_ACK */
#define NAT_ACK   0xc0 /* its bits 23 and 22 */

/* Seconds that a translation must have rested before another flow may have its port. */
#define NAT_AFTER_RST 2
#define NAT_AFTER_FIN 5
#define NAT_AFTER_DNS 10
#define NAT_UNSETTLED 30 /* without a reply, or with a first one that nothing has followed */

enum vport_kind {
	VPORT_NONE = 0,
	VPORT_INSTANCE,
	VPORT_REMOTE,
	VPORT_EDGE,
	VPORT_FUNCTION, /* ifindex is its slot in the dispatcher */
};

enum vport_state {
	STATE_CLOSED = 0,
	STATE_UP,
	STATE_DRAINING,
};

#define VPORT_MIRROR    0x02
#define VPORT_ROUTES    0x04
#define VPORT_PEER      0x08 /* packets go straight to the other end of its device */
#define VPORT_AWAY      0x10 /* its node does not answer */
#define VPORT_CHAIN_TAG     0x20 /* the source address of frames says chain and direction */
#define VPORT_ASLEEP    0x40 /* what is for it goes to the agent (lib/asleep.h) */
#define VPORT_WAKING    0x80 /* and ASLEEP: until all that went there has been taken */

struct vport {
	__u32 id;
	__u8 kind;
	__u8 state;
	__u16 flags;
	__u32 ifindex;
	__u32 other;  /* where packets delivered here come out */
	__u32 entry;
	__u32 emit;   /* table */
	__u16 peer;   /* slot */
	__u16 tenant; /* slot */
	__u32 key;    /* of the instance, as in struct member; 0: an edge */
	__u8 dmac[6]; /* of frames delivered here */
	__u8 smac[6];
};

/* What closes with a process: an instance's vports, 0: none. */
struct exit_hook {
	__u32 vports[2];
	__u32 begun; /* the process ends: who writes vports leaves them closed */
};

/* What stands behind a network device. */
#define PORT_UPLINK   1
#define PORT_INSTANCE 2

#define PORT_WIRE 0x01 /* bridge: the program carries what it does not steer */

#define ATTACH_ROUTER 1
#define ATTACH_BRIDGE 2
#define ATTACH_ARM    3
#define ATTACH_TAP    4
#define ATTACH_HOST   5

struct port {
	__u32 vport;
	__u16 slot;
	__u8 kind;
	__u8 attach;
	__u32 opposite; /* bridge: ifindex of the other side */
	__u8 addr4[4];  /* of the device: source of ICMP errors and translations */
	__u8 addr6[16];
	__u8 mac[6];
	__u16 flags;
};

#define PORT_CARRIES 0x02 /* uplinks: XDP may send by it */
#define PORT_FRAGS   0x04 /* also frames in several buffers */

/* The fast path. */
#define MAX_UPLINKS 256  /* slots of uplinks: ifindex modulo this */
#define MAX_HOPS    4096 /* next hops; slot 0 is none */

struct fast {
	__u32 epoch; /* 8 bits; of what is known about next hops; 0: nothing is */
	__u32 lease; /* seconds; until then somebody watches routes and neighbours */
};

struct uplink {
	__u32 ifindex; /* 0: none here */
	__u32 edge;
	__u32 edge_slot;
	__u32 tunnel_port; /* host order */
	__u8 mac[6];
	__u16 pad;
	struct fast fast;  /* as in the map of that name, which tc reads */
};

struct uplink_counters {
	__u64 passed_on; /* packets left to tc */
	__u64 ran;       /* packets finished by XDP behind functions */
	/* The monotonic clock, in ns and seconds, as it was at that tick. */
	__u64 tick;
	__u64 clock;
	__u32 seconds;
	__u32 pad;
};

#define HOP_FRAGS 1

/* A next hop: how frames to it begin, and what was found at the same time. */
struct hop {
	__u32 ifindex;
	__u8 dmac[6];
	__u8 smac[6];
	__u16 mtu; /* bytes of IP, of the path and the route */
	__u16 flags;
	__u32 pad;
	__u8 via[16]; /* its address */
};

struct hop_slot {
	struct hop hop;
	__u32 used; /* seconds */
	__u32 pad;
};

struct own_key {
	__u32 vport;
	__u8 addr[16];
	__u8 family;
	__u8 pad[3];
};

/* To learn a neighbour's link address, in ns of the monotonic clock. */
struct attempt {
	__u64 since;
	__u64 last;  /* a packet for it */
	__u64 tried; /* a packet that has the kernel ask */
	__u64 refused; /* 1: a sender heard of it since */
};

#define LOCAL_ADDRESS   1
#define LOCAL_BROADCAST 2

struct addr_key {
	__u8 addr[16];
	__u32 family;
};

struct peer {
	__u8 addr[16];
	__u32 family;
	__u32 secret;
	__u32 known; /* 0: an empty slot */
	__u32 mtu;   /* bytes of IP that a tunnel packet to it can hold; 0: not known */
};

/* What comes from the address is taken inside WireGuard alone. */
#define PEER_INSIDE 1

struct peer_ref {
	__u32 secret;
	__u16 slot;
	__u16 flags;
};

enum action_kind {
	ACT_NONE = 0,
	ACT_GROUP,
	ACT_TABLE,
	ACT_EXIT,
	ACT_ROUTE,
	ACT_DROP,
};

#define RULE_REVERSE 0x01
#define RULE_SPORTS  0x02
#define RULE_DPORTS  0x04

/*
 * Rules, and all that leads to them, are cells of 64 bytes. Addresses are in host
 * order here, IPv4 ones in the upper half of the first word.
 */
struct rule {
	__u64 src[2], dst[2];
	__u16 sport_first, sport_last;
	__u16 dport_first, dport_last;
	__u32 order; /* place in its table: the smallest that matches decides */
	__u32 arg;   /* group, table or drop reason */
	__u32 path;
	__u16 path_slot;
	__u8 src_len, dst_len;
	__u8 family; /* 0: any, and then no prefixes */
	__u8 proto;  /* 0: any */
	__u8 flags;
	__u8 action;
	__u32 pad;
};

/* A hash table of a forest: the address bits it keeps, and where its slots are. */
struct tuple {
	__u32 masks[8]; /* words of the source's and the destination's */
	__u32 base;     /* first cell of the slots */
	__u32 slots;    /* number of slots, less one */
	__u32 best;     /* smallest order in it */
	__u32 seed;
	__u32 pad[4];
};

/* What a slot or a node leads to: 0 nothing; with REF_LEAF a run of rules, number
 * less one and first cell; else a node. */
#define REF_LEAF  0x80000000
#define REF_SHIFT 27
#define REF_CELL  0x07ffffff

struct tuple_slots {
	struct {
		__u32 ref;
		__u32 tag; /* of the hash; 0: several addresses share the slot */
	} slot[8];
};

/* A node of a tree: eight ranges of one field. */
struct cut {
	__u32 field;
	__u32 last[7]; /* values of the children but the last */
	__u32 child[8];
};

/* The first cells of a forest. */
#define CELL_ROOTS 0
#define CELL_MISS  1

/* What can be read of a packet decides which of the roots is used. */
enum view {
	VIEW_ALL = 0,
	VIEW_NOPORTS,
	VIEW_STRICT,
	VIEWS_6,
	VIEW_NOPORTS_6,
	VIEW_STRICT_6,
	VIEW_NOPROTO_6,
	VIEW_NOPROTO_STRICT_6,
	VIEWS,
};

struct roots {
	struct {
		__u32 first; /* cell of a tuple */
		__u32 count;
	} view[VIEWS];
};

/* Where a table is: one word, so that a packet sees the old or the new one. */
#define WHERE_USED   (1ull << 63)
#define WHERE_FOREST (1ull << 62) /* the low half is the forest's slot */
#define WHERE_COUNT  32           /* rules of a small table; the low half is its first cell */

struct table {
	__u64 where;
	__u32 id;
	/* The driver's, for the process after it: what this row's table holds, and the
	 * cells of the forest whose slot has this row's number. */
	__u32 planted;
	__u8 sum[32];
};

#define GROUP_REVERSE 0x01
#define GROUP_MIRROR  0x02
#define GROUP_RESET   0x04 /* lost: reset */
#define GROUP_BYPASS  0x08 /* none: bypass */
#define GROUP_INLINE  0x10 /* functions of this node are among its members */
#define GROUP_ROWS    0x20 /* has weights by where flows come from */
#define GROUP_SOURCE  0x40 /* all flows of an address at the chain's from end meet one member */
#define GROUP_HOSTS   0x80 /* all flows between two addresses do */
#define GROUP_TOGETHER (GROUP_SOURCE | GROUP_HOSTS)

struct member {
	__u32 vport;
	__u32 key;
	__u32 weight;
	__u16 slot;
	__u16 pad;
};

struct group {
	__u32 id;
	__u32 path;
	__u16 path_slot;
	__u16 flags;
	__u32 then;
	__u32 back;
	__u32 count;
	struct member members[MAX_MEMBERS];
};

struct weights_key {
	__u32 group;
	__u32 from; /* key of an instance; 0: the edge */
};

/* Flows that meet one member: what hash_tuple says of them, and their group; of the group of
 * replies, the other one. */
struct affinity_key {
	__u64 hash;
	__u32 group;
	__u32 pad;
};

struct affinity {
	__u32 member; /* its key */
	__u32 seen;   /* seconds, as a flow's: when the last one began */
};

/*
 * A member's weight, and above it the low half of its key: a row and its group are not
 * written at once, and a row of other members says nothing.
 */
struct weights {
	__u32 of[MAX_MEMBERS];
};

#define ROW_WEIGHT 0xffff
#define ROW_KEY    16 /* shift */

#define PATH_STRICT  0x01
#define PATH_CUT     0x02
#define PATH_FORWARD 0x04
#define PATH_CLOSED  0x08 /* nothing enters it at the edge any more */
#define PATH_ENDED   0x10 /* no flow begins in it any more */

struct path {
	__u32 id;
	__u32 mtu;          /* 0: no limit */
	__u64 adopt_until;  /* ns of the monotonic clock; 0: never adopts */
	__u32 flags;
	__u32 tenant;       /* slot */
};

struct nat_prefix {
	__u64 addr[2], mask[2];
	__u32 family;
	__u32 pad;
};

struct node {
	__u32 edge;         /* vport; 0: none */
	__u32 edge_table;
	__u32 edge_slot;
	__u32 tunnel_ifindex;
	__u32 tunnel_port;  /* host order */
	__u32 underlay_ifindex;
	__u32 uplink_ifindex; /* first uplink: where route look-ups begin */
	__u32 capture;      /* vport whose packets are copied to user space; 0: none */
	__u32 capture_length;
	__u32 nat_count;
	__u32 underlay_family; /* for earlier versions' programs, which read no other tunnel packets */
	__u32 host_ifindex; /* the uplink that carries this machine's own traffic */
	struct nat_prefix nat[MAX_NAT];
	__u32 bridged;      /* 1: there are uplinks of a bridge */
	__u32 watch;        /* 1: some of watches is used */
	__u32 routers[MAX_ROUTERS]; /* ifindex of the first uplinks with attach: router or arm */
	__u32 gateways[2];     /* the edges of an HA pair of gateways; 0: there is none */
	/* Of all that decides where flows go, from 1 to GENERATIONS; 0: it is not complete yet. */
	__u32 generation;
	__u32 since;           /* when it came into force: seconds, modulo 2^24 */
};

/*
 * Which addresses stand in rules or flow entries, and which are this node's: two bytes for each
 * /20 of IPv4 and, by a hash, for each /48 of IPv6. Bytes are set and never cleared; the prefilter
 * (lib/prefilter.h) is off until complete is 1.
 */
#define CELLS_4 (1 << 20)
#define CELLS_6 (1 << 16)

struct prefilter {
	__u32 complete;
	__u8 cells[CELLS_4 + CELLS_6]; /* an address of a rule, an entry or an instance is there */
	__u8 own[CELLS_4 + CELLS_6];   /* one of the node's own is: locals has it */
};

/* Bits of an entry's functions beside the slot. */
#define INLINE_SLOT  0x7f
#define INLINE_BYPASS 0x80 /* none: bypass */

/* The programs that follow the first one, in the order of a packet's way. */
enum stage {
	STAGE_FUNCTIONS = 0, /* the dispatcher */
	STAGE_RESUME,        /* behind the functions */
	STAGE_PUNT,          /* to the agent */
	STAGES,
};

/* The same at XDP. */
enum fast_stage {
	FAST_STAGE_FUNCTIONS = 0,
	FAST_STAGES,
};

/* What stands in a slot of the dispatcher. */
struct function {
	__u32 vport;
	__u16 slot;     /* of the vport */
	__u8 open;      /* 0: out of service */
	__u8 redirects; /* it may send packets to later elements */
	__u16 needs;    /* bytes of the packet that it is shown */
	__u8 element;   /* its position in its chains, from 1; 0: not the same in all */
	__u8 shard;      /* the dispatcher that it is linked in */
	__u16 tenant;   /* slot */
	__u16 pad;
};

/* One packet in so many is timed. */
#define SAMPLE_EVERY 1024

struct function_counters {
	__u64 calls;
	__u64 passed_packets, passed_bytes;
	__u64 dropped_packets, dropped_bytes;
	__u64 answered_packets, answered_bytes;
	__u64 bypassed_packets, bypassed_bytes;
	__u64 refused_packets; /* not given to it: out of service, and none: drop */
	__u64 samples, time;   /* ns */
	__u64 reasons[16];
};

struct tenant {
	__u64 max;      /* entries that its instances may cause; 0: no limit */
	__u64 cap;      /* established entries it may have */
	__u64 deferred; /* packets of flows that were not established for want of capacity */
	/* In 2^-ADMISSION_SHIFT ns: from one flow that it may begin to the next, 0: there is no
	 * limit; and how far ahead of the clock it may begin some. */
	__u64 interval;
	__u64 burst;
	/* Ports by which its flows are translated, and that no other's are; of tenant 0: that
	 * all may use. */
	__u32 ports_from;
	__u32 ports;
};

#define ADMISSION_SHIFT 4

/* A cache line for each tenant: CPUs that begin flows of others have no part in it. */
struct admission {
	__u64 due;   /* when its next flow may begin, as struct tenant counts */
	__s64 spare; /* flows that may begin anew in any case: a configuration forgot them */
	__u64 pad[6];
};

/* Of each CPU. */
struct tenant_counters {
	__u64 refused; /* packets that would have begun a flow too many */
};

/* How fast a vport may send or be sent, in 2^-RATE_SHIFT ns: 64 bits wrap after 36 years. */
struct rate {
	__u64 byte;  /* of IP, in 2^-(RATE_SHIFT + RATE_FINER) ns; 0: there is no limit */
	__u64 ahead; /* how far ahead of the clock due may be */
	__u64 due;   /* when all that has passed would have passed at the rate; the programs' */
	__u64 more;  /* bytes that each packet counts beside its own */
};

#define RATE_SHIFT 4
#define RATE_FINER 12
#define RATE_IN    0 /* what the vport sends */
#define RATE_OUT   1 /* what it is sent */
#define RATE_WAYS  2

/* What a tenant uses of its quota; raised by the programs, recounted by the driver. */
struct quota {
	__u64 flows;       /* entries its instances caused */
	__u64 established; /* entries */
};

/* A flow of which only one direction is seen is established after so many packets; a
 * connection, whose halves may both end at a proxy, after a few in another second than its
 * first. */
#define ONE_WAY_MANY 32
#define ONE_WAY_FEW  4

/* How far behind what has to come an acknowledgement may be, bytes: packets before it may be
 * lost, or overtaken. */
#define HANDSHAKE_AHEAD (1 << 20)

/* How far a FIN or RST may be ahead of what the other direction has acknowledged, bytes: more than
 * the windows that ends have by default. */
#define END_AHEAD (1 << 22)

/* Drop reasons: onpath.DropReasons, from 1. */
enum drop_reason {
	DROP_NONE = 0,
	DROP_NO_INSTANCE,
	DROP_CLOSED,
	DROP_SPOOFED,
	DROP_QUOTA,
	DROP_TOO_BIG,
	DROP_TTL,
	DROP_NO_ROUTE,
	DROP_NO_NEIGHBOUR,
	DROP_MALFORMED,
	DROP_UNCLASSIFIED,
	DROP_TUNNEL_SOURCE,
	DROP_TUNNEL_SECRET,
	DROP_UNKNOWN_VPORT,
	DROP_NO_TABLE,
	DROP_MIRROR,
	DROP_RESET,
	DROP_NAT_PORTS,
	DROP_LOOP,
	DROP_POLICY,
	DROP_FUNCTION,
	DROP_NEW_FLOWS,
	DROP_RATE,
	DROP_NO_STATION,
	DROP_SOURCE_ROUTE,
	DROP_REASONS,
};

/* With DROP_NONE. More than there are, so that a new one leaves the layout of the counters. */
#define MAX_DROP_REASONS 32

struct vport_counters {
	__u64 in_packets, in_bytes;
	__u64 out_packets, out_bytes;
	__u64 dropped[MAX_DROP_REASONS];
};
_Static_assert(DROP_REASONS <= MAX_DROP_REASONS, "more drop reasons than counters");

struct path_counters {
	__u64 steered_packets, steered_bytes;
	__u64 passed_packets, passed_bytes;
	__u64 begun; /* flows that entered the chain here for the first time */
};

struct totals {
	__u64 learned;
	__u64 encapsulated;
};

struct frag_key {
	__u8 src[16];
	__u8 dst[16];
	__u32 id;
	__u32 scope;
	__u8 proto;
	__u8 family;
	__u16 pad;
};

struct frag {
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
	__u32 seen; /* seconds, as a flow's */
};

#define FRAG_LIFE 60 /* seconds that the rest of a datagram may take (RFC 1122 §3.3.2) */

/* When a tenant's next ICMP error is due, in ns: one about a packet that is too big, any. */
struct error_limit {
	__u64 big;
	__u64 due;
};

#define RECENT 1024

/* How many errors went to an address lately. */
struct recent {
	__u32 who;    /* its hash */
	__u32 second; /* as a flow's */
	__u64 errors;
};

/* What stood in frames that crossed a bridge, from and to an IP address. */
struct station {
	__u8 mac[6];
	__u16 vlan;    /* tag control information, and STATION_TAGGED; 0: no tag */
	__u32 ifindex; /* the side on which the address lies */
};

#define STATION_TAGGED 0x1000

/* Added to the family in the key. */
#define STATION_FROM 0x100
#define STATION_TO   0x200

/*
 * A query of a node's agent to the data path of a peer, instead of a
 * tunnelled packet: which of your vports take packets? It stands behind the UDP
 * header, with the VXLAN header of no vport. The peer's program fills the states
 * in and sends it back; no process of the peer has a part in it.
 */
#define PROBE_VPORTS 32
#define PROBE_QUERY    1
#define PROBE_REPLY 2

struct probe {
	__u8 vxlan[8];  /* flags 0x08, VNI 0 */
	__u8 secret[3]; /* of the pair */
	__u8 kind;
	__u8 count;     /* of vports */
	__u8 pad[3];
	__u8 seq[8];    /* the querier's */
	__u8 vports[PROBE_VPORTS][4]; /* id, big endian, and in replies its vport_state; only count of them are sent */
};

/* Mark of a packet that goes to this machine's own sockets. */
#define MARK_TO_HOST 0x6f700001

/* A flow whose packets are counted hop by hop; a port of 0 stands for any. */
#define MAX_WATCHES 16

struct watch {
	__u8 src[16];
	__u8 dst[16];
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 used;
	__u16 pad;
};

#define WATCH_IN   0
#define WATCH_OUT  1
#define WATCH_DROP 2 /* and the drop reason */

struct watch_key {
	__u32 watch; /* slot */
	__u32 vport;
	__u32 what;
};

struct watch_counters {
	__u64 packets; /* wire segments */
	__u64 bytes;
};

/* The punt port (lib/punt.h). */
#define PUNT_REASON     0x90 /* third byte of a frame's source, and why */
#define PUNT_SIGNALLING 0
#define PUNT_ASLEEP     1

/* Of a sleeping instance's slot: how many packets went to the agent, and of how many it has
 * said that it is done with them. */
#define ASLEEP_HANDED 0
#define ASLEEP_TAKEN  1
#define ASLEEP_COUNTS 2
#define GIST_PORT       270
#define MEASURE_PORT    862 /* STAMP, RFC 8762 */

struct punt {
	__u32 ifindex; /* this end's; 0: there is no port */
	__u32 nslpid;  /* signalling application whose messages are for the agent; 0: none */
	__u32 until;   /* seconds of the monotonic clock: so long somebody reads */
	__u32 pad;
	__u64 interval; /* from one packet to the next, ns */
	__u64 burst;    /* how far ahead of the clock, ns */
};

struct punt_state {
	__u64 due; /* when all that has passed would have passed at the rate */
	__u64 taken, refused; /* packets */
};

/* Head of a captured packet; the packet follows. */
struct captured {
	__u64 at;     /* ns of the monotonic clock */
	__u32 vport;
	__u32 length; /* of the frame */
	__u32 kept;   /* bytes that follow */
	__u32 out;    /* 1: handed to the vport, 0: came from it */
};

#endif
