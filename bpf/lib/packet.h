/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The packet being worked on: what was parsed, and what was decided. It lives
 * in a per-CPU map, so that subprograms which the verifier looks at one by one
 * can share it without using up the stack. The programs run in the network
 * receive path with bottom halves off, one packet at a time per CPU.
 */
#ifndef ONPATH_PACKET_H
#define ONPATH_PACKET_H

#include <stddef.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include "maps.h"

#ifndef AF_INET
#define AF_INET 2
#define AF_INET6 10
#endif

#define NSEC 1000000000ull

/* What the packet is (pkt.is). */
#define IS_TCP      0x0001
#define IS_SYN      0x0002 /* SYN without ACK */
#define IS_FIN      0x0004
#define IS_RST      0x0008
#define IS_ACK      0x0010
#define IS_ANYSYN   0x0020 /* SYN, also with ACK: carries options */
#define IS_ERROR    0x0040 /* an ICMP error; key is the reverse of what it quotes */
#define IS_NOPORTS  0x0080 /* ports cannot be read */
#define IS_RELAYED  0x0100 /* came over the tunnel for a function: pkt.key has an entry here */
#define IS_ENCAP    0x0200
#define IS_EDGE     0x0400 /* came in at an uplink */
#define IS_REMOTE   0x0800 /* came over the tunnel */
#define IS_HOST     0x1000 /* this machine's own traffic, at an uplink that carries it */
#define IS_ICMP     0x2000 /* any ICMP that is not an echo */
#define IS_LATER    0x4000 /* a fragment behind the first */
#define IS_NOPROTO  0x8000 /* nor can the protocol */
#define IS_OUTGOING 0x10000 /* on the way out of this machine's sockets */
#define IS_TAPPED   0x20000 /* a copy: nothing may go back */
#define IS_BRIDGED  0x40000 /* came in at one side of a bridge */
#define IS_LINK     0x80000 /* Neighbour Discovery: of one link, whatever its addresses */
#define IS_DIVISIBLE 0x200000 /* IPv4 without DF: routers may fragment it */
#define IS_ROUTED   0x400000 /* it says which routers it is to pass: by IPv4 options, or a routing header of type 0 */
#define IS_ACCEPTING 0x800000 /* a SYN-ACK to a SYN that was led by the entry of an older connection */
#define IS_AWAITED  0x100000 /* by an instance that is closed here, and not where it is */

/* What to do with a packet: a flow entry, opened up. */
struct decision {
	__u32 kind;
	__u32 next, slot;
	__u32 context;
	__u32 group;
	__u32 entry;
	__u32 path, path_slot;
	__u32 flags; /* FLOW_… */
	__u32 first_table; /* that a rule led to */
	__u32 first_path;  /* slot of the path whose rule matched first */
	__u32 matched;  /* rules of a path that matched */
	__u32 bypassed; /* elements without an instance */
	__u32 mirror_count;
	__u32 mirrors[MAX_MIRRORS];
	__u32 mirror_slots[MAX_MIRRORS];
	__u8 functions[MAX_INLINE] __attribute__((aligned(8))); /* as in a flow entry */
};

/* What an ICMP error begins with. */
struct error4 {
	struct iphdr ip;
	__u8 type, code;
	__u16 sum;
	__be32 info;
};

struct error6 {
	struct ipv6hdr ip;
	__u8 type, code;
	__u16 sum;
	__be32 info;
};

#define SYNC_EVERY 3 /* log2 of the seconds between two messages about an entry to the HA peer */

#define NOBODY MAX_TENANTS /* no tenant's slot */
#define EVERYBODY (MAX_TENANTS + 1)
#define NOWHERE (1u << 18) /* the path of packets whose group this node does not have */
#define MAX_ELEMENTS 32 /* of a path: group numbers have five bits for them */
/* Any instance's interface takes as many bytes of IP: what is no longer, and too long for a
 * path, is too long for a tunnel of it. */
#define LEAST_INTERFACE 1500
#define MAX_QUOTED 96 /* bytes that an ICMP error quotes; a multiple of 4 */

/* Subprograms return a verdict for the kernel, or: go on with pkt.d. */
#define GO_ON (-2)
/* Or: what the flow's entry led to is no more, and the entry is gone: decide anew. */
#define ANEW (-3)
/* Or, of a walk of tables: it stands at a rule that begins a chain, and can go on. */
#define HALTED (-4)
/* Or: on with the dispatcher, and then STAGE_RESUME. */
#define RUN_FUNCTIONS 0x6f70

/* What a walk of tables keeps of what was chosen before it. */
#define KEEP_FUNCTIONS 0x1
#define KEEP_MIRRORS   0x2

/* What the dispatcher leaves to be done. */
#define AFTER_SEND   0 /* pkt.d */
#define AFTER_REFUSE 1 /* tell the sender */
#define AFTER_REDIRECT 2 /* on to another element: pkt.element */

/* Where replies go, as in struct decision. */
struct reply {
	__u32 kind;
	__u32 next, slot;
};

/* By what choose chooses a member, and what is noted once a flow has the member. */
struct choice {
	__u64 hash;
	__u32 weighed, upstream; /* 1: by the weights of where the flow comes from */
	struct affinity_key key;
	struct affinity with; /* the member of flows of that key */
	__u32 together;       /* the member's vport; 0: flows are chosen for one by one */
	__u32 drawn;          /* key of the member that was chosen last */
};

struct pkt {
	struct flow_key key;  /* scope and tuple as seen */
	struct flow_key rkey; /* the reverse, elsewhere */
	struct flow_key wkey; /* used by one function at a time */
	struct flow_key nkey; /* of a translation that may go */
	struct flow fresh;    /* being inserted */
	struct nat nat_reply;    /* likewise */
	struct frag_key fkey;
	struct addr_key akey;
	struct own_key okey;

	__u32 is;
	__u32 now;     /* seconds of the monotonic clock, & SEEN_MASK */
	__u64 clock;   /* the whole clock, in ns */
	__u32 generation; /* the node's as the packet came */
	__u32 l3;      /* offset of the IP header */
	__u32 l4;      /* offset of the transport header */
	__u32 headers; /* bytes of IP and transport headers */
	__u32 length;  /* IP bytes, of all segments as one */
	__u32 segment; /* IP bytes of the largest segment; 0: not known */
	__u32 packets, bytes; /* on the wire */
	__u32 seq, ack; /* TCP */
	__u32 inner_l3; /* ICMP errors: offset of the quoted header */
	__u32 inner_l4;
	__u32 ext;     /* skip_extensions */
	__u32 frag, frag_id;
	__u16 tags;    /* VLAN tags in the frame, beside the one in the metadata */
	__u8 ttl;
	__u8 family;
	__u8 learn;    /* write or refresh the entries at the next hop */
	__u8 must_sync;     /* an edge's entry is to be sent to the HA peer */
	__u8 absent;   /* the entry of key was looked for, and is not there */
	__u8 anew;     /* decided for a second time, as its entry led nowhere */
	__u8 queried;    /* the HA peer has sent what it knows of the flow (lib/ha_query.h) */
	__u8 followed; /* it went by an entry that was there */
	__u8 halt;     /* a walk halts at a rule that begins a chain */
	__u8 halted;   /* it goes on from there */

	__u32 ifindex; /* where it came in */
	__u32 back_tenant; /* likewise, of rkey */
	__u32 establish;      /* the entry of rkey is established at once */
	__u32 tenant;  /* slot; in whose pending table an entry of key stands */
	__u32 prev;    /* vport it came from */
	__u32 prev_slot;

	struct decision d;    /* for this packet */
	struct decision back; /* for its replies: mirrors and the group they meet first */

	struct reply reply;

	/* Result of classify. */
	__u32 action;
	__u32 arg;
	__u32 rule_path, rule_path_slot, rule_flags;
	__u32 hit;
	__u32 strict_only; /* only rules of strict paths match */

	/* The tuple as classify compares it; host order. */
	__u64 addr[4];   /* source, destination */
	__u32 field[16]; /* words of the addresses, ports, protocol */
	__u32 lacks;      /* IS_NOPORTS, IS_NOPROTO */
	__u32 best_order; /* of the best rule so far */
	__u32 best_cell;

	/* Result of choose. */
	__u32 member, member_slot;
	__u32 best_weight;
	__u64 best; /* what it drew */
	/* Of find_owner: the member that is tried last, and what the one tried before drew. */
	__u32 first, first_slot;
	__u64 floor;
	__u32 floor_weight;
	struct choice choice;

	__u32 dropped; /* DROP_…: finish counts it */
	__u32 after; /* AFTER_…: what is done behind the dispatcher */
	__u32 resumes; /* it comes from there */
	__u32 ran;     /* functions that the packet has passed */
	__u32 element; /* a function sends it there */
	__u32 edited; /* a function changed the tuple */
	struct flow_key came; /* what it was */
	__u32 inward; /* the destination was translated: what it was */
	__u8 outside[16];
	__be16 outside_port;
	__u8 end[16]; /* what edit_end writes */
	__be16 end_port;
	__u32 keep; /* KEEP_: the next walk goes on behind what is chosen already */

	__u32 last_function; /* group of the last function that a walk chose; 0: of none */
	__u32 reply_group; /* of the replies at the edge: find_reply_group */
	__u32 requested_group; /* by which another node requests a function here */
	__u32 start_group; /* where the next walk begins, instead of a table */
	__u32 table; /* the next one of a walk */
	__u32 mirror_groups[MAX_MIRRORS]; /* groups of mirrors, the last one first */

	__u8 macs[12]; /* of the frame as it came */
	__be32 chain_tag;   /* the last four bytes of what a frame says its source is */
	__u16 vlan;    /* bridge: its tag, as in struct station */
	__u32 opposite;
	struct station station; /* being written */

	/* Too large for the stack. */
	struct bpf_tunnel_key tunnel;
	struct bpf_fib_lookup fib;
	__u32 resolved; /* the neighbour in fib */
	__u32 refusal;  /* find_route: ERROR_… */
	__u32 epoch;    /* of the fast path, when fib was looked up */
	struct hop_slot hop;
	union {
		struct error4 error4;
		struct error6 error6;
	};
	__u8 body[MAX_QUOTED]; /* of an ICMP error */
};

MAP(scratch, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct pkt, 1, 0);

static __always_inline struct pkt *packet(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

static __always_inline struct node *this_node(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&nodes, &zero);
}

/* The vport in a slot, if it is still that one. */
static __always_inline struct vport *vport_at(__u32 slot, __u32 id)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);

	return v && v->id == id && v->kind ? v : NULL;
}

/* Is the vport at slot a function of this node? */
static __always_inline int function_at(__u32 slot)
{
	struct vport *v = bpf_map_lookup_elem(&vports, &slot);

	return slot && v && v->kind == VPORT_FUNCTION;
}

/* Where the driver puts a vport unless that is taken. */
static __always_inline __u32 first_slot(__u32 id)
{
	return id % MAX_VPORTS;
}

/* The vport of an id; *slot is tried first and corrected. */
static __always_inline struct vport *vport_of(__u32 *slot, __u32 id)
{
	struct vport *v = vport_at(*slot, id);
	__u32 *s;

	if (v)
		return v;
	s = bpf_map_lookup_elem(&slots, &id);
	if (!s)
		return NULL;
	*slot = *s;
	return vport_at(*s, id);
}

#ifndef PACKET_HOST
#define PACKET_HOST 0
#endif

/* The coarse clock is half the price; look-ups need seconds only. */
static __always_inline __u32 now_seconds(void)
{
	return (bpf_ktime_get_coarse_ns() / NSEC) & SEEN_MASK;
}

/* Is one time further ahead of another than so much? Both may have wrapped, and CPUs differ. */
static __always_inline int is_beyond(__u64 due, __u64 now, __u64 ahead)
{
	return (__s64)(due - now) > (__s64)ahead;
}

static __always_inline int is_past(__u64 due, __u64 now)
{
	return (__s64)(due - now) < 0;
}

static __always_inline void read_clock(struct pkt *p)
{
	p->clock = bpf_ktime_get_coarse_ns();
	p->now = (p->clock / NSEC) & SEEN_MASK;
}

/* A packet comes in: what the one before it left must not decide about it. */
static __always_inline void begin_packet(struct pkt *p, __u32 ifindex)
{
	struct node *n = this_node();

	p->ifindex = ifindex;
	p->is = 0;
	p->packets = 1;
	p->bytes = 0;
	p->tags = 0;
	p->vlan = 0;
	p->choice.together = 0;
	p->learn = p->must_sync = p->absent = p->anew = p->queried = p->followed = p->halt = p->halted = 0;
	p->tenant = 0;
	p->prev_slot = 0;
	p->strict_only = 0;
	p->keep = 0;
	p->start_group = 0;
	p->edited = p->inward = 0;
	p->ran = 0;
	p->after = AFTER_SEND;
	p->dropped = DROP_NONE;
	p->generation = n ? n->generation : 0;
	read_clock(p);
}

/* The IPv4 address in sixteen bytes. */
#define V4(a) (((__u32 *)(a))[3])

static __always_inline void map_v4(void *to, __be32 a)
{
	((__u32 *)to)[0] = ((__u32 *)to)[1] = 0;
	((__u32 *)to)[2] = bpf_htonl(0xffff);
	((__u32 *)to)[3] = a;
}

static __always_inline int is_mapped(const void *a)
{
	return !((const __u32 *)a)[0] && !((const __u32 *)a)[1] &&
	       ((const __u32 *)a)[2] == bpf_htonl(0xffff);
}

static __always_inline void clear_functions(struct decision *d)
{
	*(__u64 *)d->functions = 0;
}

static __always_inline int has_functions(const struct decision *d)
{
	return d->functions[0] != 0;
}

static __always_inline void copy_addr(void *to, const void *from)
{
	((__u32 *)to)[0] = ((const __u32 *)from)[0];
	((__u32 *)to)[1] = ((const __u32 *)from)[1];
	((__u32 *)to)[2] = ((const __u32 *)from)[2];
	((__u32 *)to)[3] = ((const __u32 *)from)[3];
}

/* Swap the ends of a tuple; r gets the given scope. */
static __always_inline void reverse_key(struct flow_key *r, const struct flow_key *k, __u32 scope)
{
	r->scope = scope;
	copy_addr(r->src, k->dst);
	copy_addr(r->dst, k->src);
	r->sport = k->dport;
	r->dport = k->sport;
	r->proto = k->proto;
}

static __always_inline void copy_key(struct flow_key *to, const struct flow_key *k, __u32 scope)
{
	to->scope = scope;
	copy_addr(to->src, k->src);
	copy_addr(to->dst, k->dst);
	to->sport = k->sport;
	to->dport = k->dport;
	to->proto = k->proto;
}

static __always_inline int has_ports(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_SCTP ||
	       proto == IPPROTO_UDPLITE;
}

/* An echo's identifier stands in their place. */
static __always_inline int tuple_has_ports(__u8 proto)
{
	return has_ports(proto) || proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6;
}

#endif
