/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * onpath's packet path: one program, at tc ingress of
 *
 *   uplinks                packets from outside, at the node's edge
 *   instances' vports      on the node's end
 *   the VXLAN device       packets from other nodes
 *   the underlay's device  who may send any
 *
 * and at tc egress of an uplink that carries this machine's own traffic. It is
 * one because the verifier looks at every function once for each program. Beside
 * it, the fast path stands at XDP of uplinks (lib/fast.h), and a small program at
 * WireGuard's device, which has no Ethernet headers.
 *
 * The way of a packet whose addresses may concern this node (lib/prefilter.h): parse, flow
 * entry, or else classify (tables, groups), send.
 * The hop limit goes down by one where a packet leaves at the edge and nowhere
 * else. So traceroute shows each routed instance, which counts as the router it
 * is, and then the gateway as one hop; bridged ones do not appear.
 */
#include "lib/fast.h"
#include "lib/probe.h"
#include "lib/punt.h"
#include "lib/send.h"

/* Decide on a packet, and begin to send it. */
static __always_inline int begin(struct __sk_buff *skb, struct pkt *p)
{
	int rc = p->is & IS_EDGE ? classify_ingress(skb) : classify_egress(skb);

	return rc == GO_ON ? begin_send(skb) : rc;
}

/* Look up the flow of pkt.key and do what it says. */
static __always_inline int steer(struct __sk_buff *skb, struct pkt *p)
{
	struct flow *e;
	int rc;

	e = p->is & IS_NOPORTS ? NULL : flow_established(&p->key);
	if (e && begins_anew(p, tenant_of_mate(p, e)))
		e = NULL;
	if (e && entry_kind(e) != NEXT_PENDING) {
		follow(p, e, 0);
		rc = begin_send(skb);
	} else {
		rc = begin(skb, p);
	}
	if (rc == ANEW) { /* at most once */
		p->learn = p->must_sync = p->absent = 0;
		p->tenant = 0;
		rc = begin(skb, p);
	}
	return rc == GO_ON ? send_on(skb) : rc;
}

/* To the tunnel port of this node or another? Elsewhere the port is anyone's. */
static __always_inline int to_tunnel(struct pkt *p, const struct node *n)
{
	if (p->key.proto != IPPROTO_UDP || (p->is & (IS_ERROR | IS_NOPORTS)) ||
	    bpf_ntohs(p->key.dport) != n->tunnel_port)
		return 0;
	return is_local(p, p->key.dst) || bpf_map_lookup_elem(&peer_addrs, &p->akey);
}

/* This machine's own packets: what its sockets send, which came in nowhere, and
 * what comes in for one of its addresses. */
static __always_inline __u32 own_traffic(struct __sk_buff *skb, struct pkt *p)
{
	if (!skb->ingress_ifindex)
		return is_local(p, p->key.src) == LOCAL_ADDRESS ? IS_HOST | IS_OUTGOING : 0;
	return is_local(p, p->key.dst) == LOCAL_ADDRESS ? IS_HOST : 0;
}

/* The tag of a frame at a bridge: pkt.vlan. 0 if it has more than can be put back. */
static __always_inline int read_tag(struct __sk_buff *skb, struct pkt *p)
{
	__be16 tci;

	if (skb->vlan_present) {
		p->vlan = skb->vlan_tci | STATION_TAGGED;
		return !p->tags && skb->vlan_proto == bpf_htons(ETH_P_8021Q);
	}
	if (!p->tags)
		return 1;
	if (p->tags > 1 || skb->protocol != bpf_htons(ETH_P_8021Q) || bpf_skb_load_bytes(skb, 14, &tci, 2))
		return 0;
	p->vlan = bpf_ntohs(tci) | STATION_TAGGED;
	return 1;
}

/* Does the frame belong to a VLAN? One with tag 0 does not, it only has a priority. */
static __always_inline int in_vlan(struct __sk_buff *skb, struct pkt *p)
{
	__be16 tci;

	if (skb->vlan_present)
		return p->tags || (skb->vlan_tci & 0xfff);
	if (!p->tags)
		return 0;
	return p->tags > 1 || bpf_skb_load_bytes(skb, 14, &tci, 2) || (bpf_ntohs(tci) & 0xfff);
}

/* What functions at XDP left to be done (lib/fast_functions.h): 0 if they saw nothing
 * of the packet. */
static __always_inline __u32 read_note(struct __sk_buff *skb, struct pkt *p)
{
	const struct fast_note *note = (void *)(long)skb->data_meta;

	if ((void *)(note + 1) > (void *)(long)skb->data || note->magic != NOTE_MAGIC)
		return 0;
	p->d.path_slot = note->path;
	p->fib.mtu_result = note->mtu;
	return note->what;
}

/* Do it: all has been counted but what happens to the packet here. */
static __always_inline int do_noted(struct __sk_buff *skb, struct pkt *p, __u32 what)
{
	__u32 slot = p->d.path_slot;
	struct path *path = bpf_map_lookup_elem(&paths, &slot);

	p->d.kind = NEXT_EXIT;
	p->d.next = p->d.slot = p->d.context = p->d.group = p->d.entry = 0;
	p->d.path = slot && path ? path->id : 0;
	p->d.flags = p->d.mirror_count = p->d.bypassed = 0;
	clear_functions(&p->d);
	if (what == NOTE_LEAVE) {
		return send_on(skb);
	}
	p->after = AFTER_REFUSE;
	if (what == NOTE_BIG)
		return send_error(skb, ERROR_BIG, p->fib.mtu_result);
	return p->is & IS_TCP ? send_reset(skb) : send_error(skb, ERROR_PROHIBITED, 0);
}

/* A packet at an uplink. TC_ACT_OK and TC_ACT_UNSPEC: not ours. */
static __always_inline int from_edge(struct __sk_buff *skb, struct node *n, struct pkt *p,
				     __u32 attach)
{
	__u32 note;
	int rc;

	if (!n->edge)
		return TC_ACT_UNSPEC;
	note = attach == ATTACH_ROUTER || attach == ATTACH_ARM ? read_note(skb, p) : 0;
	p->prev = n->edge;
	p->prev_slot = n->edge_slot;
	p->key.scope = n->edge;
	rc = parse(skb);
	if (rc == PARSE_ENCAP)
		count_encapsulated(1);
	if (rc != PARSE_IP || (p->is & IS_LINK))
		return TC_ACT_UNSPEC;
	/* Another network than the device's, which the kernel leads to a device of its own. */
	if (attach != ATTACH_BRIDGE && attach != ATTACH_TAP && in_vlan(skb, p))
		return TC_ACT_UNSPEC;
	p->is |= IS_EDGE;
	switch (attach) {
	case ATTACH_HOST:
		p->is |= own_traffic(skb, p);
		if (!(p->is & IS_HOST))
			return TC_ACT_UNSPEC;
		if ((p->is & IS_OUTGOING) && to_tunnel(p, n))
			return TC_ACT_UNSPEC;
		break;
	case ATTACH_TAP:
		p->is |= IS_TAPPED;
		break;
	case ATTACH_BRIDGE:
		p->is |= IS_BRIDGED;
		if (!read_tag(skb, p))
			return refuse_tags(skb);
	}
	if (to_tunnel(p, n) && skb->ifindex != n->underlay_ifindex) {
		count_in(skb, p, p->prev_slot, p->prev);
		return drop(p, DROP_TUNNEL_SOURCE);
	}
	if ((attach == ATTACH_ROUTER || attach == ATTACH_ARM) && is_signalling(skb, p))
		return PUNT;
	if ((p->is & (IS_ROUTED | IS_TAPPED)) == IS_ROUTED)
		return refuse_source_route(skb);
	bpf_skb_load_bytes(skb, 0, p->macs, 12);
	return note ? do_noted(skb, p, note) : steer(skb, p);
}

/* At an uplink that is not one of node.routers. */
static __always_inline int at_uplink(struct __sk_buff *skb, struct node *n, struct pkt *p,
				     const struct port *port)
{
	__u32 attach = port->attach, wire = port->flags & PORT_WIRE;
	int rc;

	p->opposite = port->opposite;
	if (attach != ATTACH_HOST && attach != ATTACH_BRIDGE && attach != ATTACH_TAP && skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	rc = from_edge(skb, n, p, attach);
	if (rc == RUN_FUNCTIONS || rc == PUNT)
		return rc;
	if (attach == ATTACH_TAP)
		return TC_ACT_SHOT;
	if (rc != TC_ACT_OK && rc != TC_ACT_UNSPEC)
		return rc;
	return wire ? bpf_redirect(p->opposite, 0) : TC_ACT_UNSPEC; /* others on the device have their say */
}

/* At an uplink between which and others the kernel routes. */
static __always_inline int at_router(struct __sk_buff *skb, struct node *n, struct pkt *p)
{
	int rc;

	if (skb->pkt_type != PACKET_HOST) /* nor does the kernel forward others, whatever their IP says */
		return TC_ACT_UNSPEC;
	rc = from_edge(skb, n, p, ATTACH_ROUTER);
	return rc == TC_ACT_OK ? TC_ACT_UNSPEC : rc;
}

/* A packet from an instance of this node. */
static __always_inline int from_instance(struct __sk_buff *skb, struct node *n, struct pkt *p,
					 const struct port *port)
{
	int rc;

	p->prev = port->vport;
	p->prev_slot = port->slot;
	p->key.scope = port->vport;
	rc = parse(skb);
	if (rc == PARSE_OTHER || rc == PARSE_ENCAP)
		return TC_ACT_SHOT; /* ARP, spanning tree: nobody is there to take it */
	if (rc == PARSE_MALFORMED) {
		p->bytes = skb->len - p->l3;
		count_in(skb, p, port->slot, port->vport);
		return drop(p, DROP_MALFORMED);
	}
	if (confined(p->key.dst, p->family) || confined(p->key.src, p->family) || (p->is & IS_LINK))
		return TC_ACT_SHOT; /* ND, MLD, mDNS: likewise */
	count_in(skb, p, port->slot, port->vport);
	if (to_tunnel(p, n))
		return drop(p, DROP_TUNNEL_SOURCE);
	if (!within_rate(p, port->slot, RATE_IN))
		return drop(p, DROP_RATE);
	bpf_skb_load_bytes(skb, 0, p->macs, 12);
	return steer(skb, p);
}

/* A packet for vport x from another node: what the sender's entry decided. */
static __always_inline int receive(struct __sk_buff *skb, struct pkt *p, struct node *n, __u32 vni)
{
	struct vport *v;
	struct flow *e;
	__u32 slot = first_slot(vni);

	p->d.kind = NEXT_VPORT;
	clear_functions(&p->d);
	p->d.next = vni;
	p->d.slot = 0;
	p->d.context = p->d.path = p->d.path_slot = p->d.flags = p->d.mirror_count = 0;
	p->d.bypassed = 0;
	if (p->d.group) {
		__u32 id = p->d.group;
		struct group *g = bpf_map_lookup_elem(&groups, &id);

		if (g) {
			p->d.path = g->path;
			p->d.path_slot = g->path_slot;
			p->d.flags = g->flags & GROUP_REVERSE ? FLOW_REVERSE : 0;
		} else {
			p->d.path = NOWHERE;
			p->d.flags = id & 1 ? FLOW_REVERSE : 0;
		}
	}
	reverse_key(&p->rkey, &p->key, vni);
	e = flow_established(&p->rkey);
	if (vni == n->edge) {
		if (!p->d.entry) {
			p->d.entry = n->edge;
			p->d.flags |= FLOW_ADOPTED;
		}
		if (other_gateway(n, p->d.entry) == n->edge)
			p->d.entry = n->edge; /* the HA peer is gone */
		p->learn = !e || e->seen != p->now || refresh_always || e->next != p->prev || (e->slot & SYN_NOTED);
		if (e)
			note_syn_reply(p, e, p->prev);
		p->d.kind = NEXT_EXIT;
		p->d.context = p->d.group;
		p->d.group = 0;
		return send(skb);
	}
	v = vport_of(&slot, vni);
	if (!v || v->kind == VPORT_REMOTE)
		return drop(p, DROP_UNKNOWN_VPORT);
	if (!e)
		e = flow_pending(&p->rkey, v->tenant);
	p->learn = !e || e->seen != p->now || refresh_always ||
		   (e->next != p->prev && !leads_to_ha_peer(n, e, p->prev)) || gateway_moved(slot) ||
		   (p->d.group && e->context != (p->d.group ^ 1) && !(e->flags & FLOW_EMITTED));
	if (e)
		note_syn_reply(p, e, p->prev);
	p->d.slot = slot;
	if (v->kind == VPORT_FUNCTION) {
		int rc = classify_relayed();

		return rc == GO_ON ? send(skb) : rc;
	}
	if (!e && runs(p) && v->state != STATE_CLOSED)
		find_owner(vni);
	return send(skb);
}

/* No chain takes a packet of which the HA peer was asked: out as the kernel would send it. */
__noinline int pass_on(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	int reason;

	if (!p)
		return TC_ACT_SHOT;
	reason = find_route(skb);
	if (!reason)
		reason = reach_neighbour(p);
	if (reason)
		return refuse_route(skb, p, reason);
	if (p->ttl <= 1)
		return send_error(skb, ERROR_TTL, 0);
	decrement_ttl(skb, p);
	return leave_by_route(skb, p);
}

/* The HA peer synchronizes an entry, queries, or returns the packet of a query. */
static __always_inline int from_ha_peer(struct __sk_buff *skb, struct pkt *p, struct node *n, __u32 vni,
				       __u32 peer)
{
	int rc;

	if (!is_from_ha_peer(p, n, peer))
		return drop(p, DROP_UNKNOWN_VPORT);
	if (p->d.entry == HA_QUERY)
		return serve_query(skb);
	if (p->d.entry != HA_RETURNED)
		return receive_sync(vni);
	resume_returned(p, n);
	rc = steer(skb, p);
	return rc == TC_ACT_OK || rc == TC_ACT_UNSPEC ? pass_on(skb) : rc;
}

static __always_inline int from_tunnel(struct __sk_buff *skb, struct node *n, struct pkt *p)
{
	struct bpf_tunnel_key *key = &p->tunnel;
	__u32 slot, peer, secret;
	struct peer_ref *ref;
	struct peer *sender;
	struct vport *prev;
	__u8 head[12];
	int rc;

	__builtin_memset(&p->akey, 0, sizeof(p->akey));
	if (!bpf_skb_get_tunnel_key(skb, key, TUNNEL_KEY_SIZE, 0)) {
		p->akey.family = FAMILY_4;
		map_v4(p->akey.addr, bpf_htonl(key->remote_ipv4));
	} else if (!bpf_skb_get_tunnel_key(skb, key, TUNNEL_KEY_SIZE, BPF_F_TUNINFO_IPV6)) {
		p->akey.family = FAMILY_6;
		copy_addr(p->akey.addr, key->remote_ipv6);
	} else {
		return drop(p, DROP_TUNNEL_SOURCE);
	}
	if (key->tunnel_ttl != 255)
		return drop(p, DROP_TUNNEL_SOURCE);
	if (bpf_skb_load_bytes(skb, 0, head, sizeof(head)))
		return drop(p, DROP_MALFORMED);
	p->prev = get24(head);
	slot = first_slot(p->prev);
	prev = vport_of(&slot, p->prev);
	peer = prev && prev->kind == VPORT_REMOTE ? prev->peer : 0;
	sender = bpf_map_lookup_elem(&peers, &peer);
	if (peer && sender && sender->known && sender->family == p->akey.family && same_addr(sender->addr, p->akey.addr)) {
		secret = sender->secret;
	} else { /* the vport is another's, or not known here */
		ref = bpf_map_lookup_elem(&peer_addrs, &p->akey);
		if (!ref)
			return drop(p, DROP_TUNNEL_SOURCE);
		secret = ref->secret;
		peer = ref->slot;
		slot = 0;
	}
	if (get24(head + 9) != secret)
		return drop(p, DROP_TUNNEL_SECRET);
	p->prev_slot = slot;
	p->d.entry = get24(head + 3);
	p->d.group = get24(head + 6);
	p->key.scope = p->prev;
	rc = parse(skb);
	if (rc != PARSE_IP)
		return drop(p, DROP_MALFORMED);
	p->is |= IS_REMOTE;
	__builtin_memcpy(p->macs, head, 12);
	if (!p->prev && n->gateways[0])
		return from_ha_peer(skb, p, n, key->tunnel_id, peer);
	count_in(skb, p, p->prev_slot, p->prev);
	return receive(skb, p, n, key->tunnel_id);
}

/* What check_underlay says of a packet on the underlay. */
#define UNDERLAY_OTHER   0
#define UNDERLAY_PASSES  1 /* of a peer or to one, and for the kernel as it is */
#define UNDERLAY_REFUSED 2 /* a tunnel packet of a stranger */
#define UNDERLAY_PROBE   3 /* a query of a peer's agent */

/*
 * Only known nodes, one hop away as hop limits tell, may send tunnel packets. Where the
 * underlay is an uplink for this machine's own traffic, too, this node's leave by it, and the
 * program may be run for one by itself, in the midst of the packet that is being sent to the HA
 * peer or copied to mirrors: so pkt must not be touched.
 */
__noinline int check_underlay(struct __sk_buff *skb)
{
	struct addr_key from = {}, to = {};
	struct node *n = this_node();
	__u8 head[16] = {}; /* UDP and VXLAN headers */
	struct peer_ref *ref;
	__u32 l4 = ETH_HLEN;
	__u8 near = 0;
	__be16 type;

	if (!n || bpf_skb_load_bytes(skb, 12, &type, 2))
		return UNDERLAY_OTHER;
	if (type == bpf_htons(ETH_P_IP)) {
		struct iphdr h;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &h, sizeof(h)) || h.protocol != IPPROTO_UDP ||
		    (h.frag_off & bpf_htons(0x1fff)))
			return UNDERLAY_OTHER;
		l4 += h.ihl * 4;
		near = h.ttl == 255;
		from.family = to.family = FAMILY_4;
		map_v4(from.addr, h.saddr);
		map_v4(to.addr, h.daddr);
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr h;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &h, sizeof(h)) || h.nexthdr != IPPROTO_UDP)
			return UNDERLAY_OTHER;
		l4 += sizeof(h);
		near = h.hop_limit == 255;
		from.family = to.family = FAMILY_6;
		copy_addr(from.addr, &h.saddr);
		copy_addr(to.addr, &h.daddr);
	} else {
		return UNDERLAY_OTHER;
	}
	if (bpf_skb_load_bytes(skb, l4, head, sizeof(head)) && bpf_skb_load_bytes(skb, l4, head, 4))
		return UNDERLAY_OTHER;
	ref = near && skb->ingress_ifindex ? bpf_map_lookup_elem(&peer_addrs, &from) : NULL;
	if (ref && (ref->flags & PEER_INSIDE)) /* in clear text anybody could say it */
		ref = NULL;
	if (bpf_ntohs(*(__be16 *)(head + 2)) != n->tunnel_port) /* perhaps a reply to this node's agent */
		return ref && bpf_ntohs(*(__be16 *)head) == n->tunnel_port ? UNDERLAY_PASSES : UNDERLAY_OTHER;
	if (ref && !(*(__u32 *)(head + 12) & bpf_htonl(0xffffff00)))
		return UNDERLAY_PROBE;
	if (ref)
		return UNDERLAY_PASSES;
	/* What came in nowhere is this machine's own, or of no address of its, and left alone. */
	if (skb->ifindex == n->host_ifindex && (!skb->ingress_ifindex || bpf_map_lookup_elem(&locals, &from)) &&
	    bpf_map_lookup_elem(&peer_addrs, &to))
		return UNDERLAY_PASSES;
	return skb->ingress_ifindex ? UNDERLAY_REFUSED : UNDERLAY_OTHER;
}

/* What is told before all else: UNDERLAY_PASSES also of what the program itself has put into
 * the stack at the uplink for this machine's own traffic. */
static __always_inline int check_device(struct __sk_buff *skb)
{
	struct node *n = this_node();

	if (!n)
		return UNDERLAY_OTHER;
	if (skb->mark == MARK_TO_HOST && skb->ingress_ifindex && skb->ifindex == n->host_ifindex) {
		skb->mark = 0;
		return UNDERLAY_PASSES;
	}
	return skb->ifindex == n->underlay_ifindex ? check_underlay(skb) : UNDERLAY_OTHER;
}

static __always_inline int at_device(struct __sk_buff *skb, struct pkt *p, int what)
{
	__u32 ifindex = skb->ifindex;
	struct node *n = this_node();
	struct port *port;

	if (!n)
		return TC_ACT_SHOT;
	if (ifindex == n->tunnel_ifindex)
		return from_tunnel(skb, n, p);
	if (what == UNDERLAY_REFUSED)
		return drop(p, DROP_TUNNEL_SOURCE);
	if (what == UNDERLAY_PROBE)
		return reply_probe(skb);
	if (ifindex == n->routers[0] || ifindex == n->routers[1] || ifindex == n->routers[2] ||
	    ifindex == n->routers[3])
		return at_router(skb, n, p);
	port = bpf_map_lookup_elem(&ports, &ifindex);
	if (!port)
		return ifindex == n->underlay_ifindex ? TC_ACT_UNSPEC : TC_ACT_SHOT;
	if (port->kind == PORT_INSTANCE)
		return from_instance(skb, n, p, port);
	return at_uplink(skb, n, p, port);
}

/*
 * What comes out of WireGuard's device, without Ethernet header, from a node that has a key: IPv6
 * from its own address there, as WireGuard has checked. A node may ask, reply and send tunnel
 * packets to the tunnel port, and be asked by ICMP and by STAMP; no other service of this machine
 * is open to it.
 */
SEC("tc")
int onpath_inside(struct __sk_buff *skb)
{
	struct node *n = this_node();
	struct addr_key from = {};
	struct peer_ref *ref;
	__u8 head[16] = {};
	struct ipv6hdr h;
	__u16 to;

	if (!n || skb->protocol != bpf_htons(ETH_P_IPV6) || bpf_skb_load_bytes(skb, 0, &h, sizeof(h)))
		return TC_ACT_SHOT;
	if (h.nexthdr == IPPROTO_ICMPV6)
		return TC_ACT_UNSPEC;
	if (h.nexthdr != IPPROTO_UDP || (bpf_skb_load_bytes(skb, sizeof(h), head, sizeof(head)) &&
					 bpf_skb_load_bytes(skb, sizeof(h), head, 8)))
		return TC_ACT_SHOT;
	to = bpf_ntohs(*(__be16 *)(head + 2));
	if (to == MEASURE_PORT || bpf_ntohs(*(__be16 *)head) == MEASURE_PORT)
		return TC_ACT_UNSPEC;
	from.family = FAMILY_6;
	copy_addr(from.addr, &h.saddr);
	ref = h.hop_limit == 255 ? bpf_map_lookup_elem(&peer_addrs, &from) : NULL;
	if (!ref || !(ref->flags & PEER_INSIDE))
		return TC_ACT_SHOT;
	if (to != n->tunnel_port)
		return bpf_ntohs(*(__be16 *)head) == n->tunnel_port ? TC_ACT_UNSPEC : TC_ACT_SHOT;
	return *(__u32 *)(head + 12) & bpf_htonl(0xffffff00) ? TC_ACT_UNSPEC : reply_inside(skb);
}

SEC("xdp.frags")
int onpath_fast(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex, index = ifindex % MAX_UPLINKS;
	struct uplink_counters *c = bpf_map_lookup_elem(&uplink_stats, &index);
	struct uplink *u = bpf_map_lookup_elem(&uplinks, &index);
	int verdict;

	if (!u || !c || u->ifindex != ifindex)
		return XDP_PASS;
	verdict = carry(ctx, u, c);
	if (verdict == XDP_PASS)
		c->passed_on++;
	return verdict;
}

/* Behind the functions (functions.bpf.c). */
static __always_inline int behind_functions(struct __sk_buff *skb, struct pkt *p)
{
	int rc = GO_ON;

	if (p->after == AFTER_REFUSE)
		return p->is & IS_TCP ? send_reset(skb) : send_error(skb, ERROR_PROHIBITED, 0);
	if (p->after == AFTER_REDIRECT)
		rc = redirect(skb);
	if (rc == GO_ON)
		rc = send_on(skb);
	else if (rc == RUN_FUNCTIONS)
		return rc;
	return p->is & IS_TAPPED ? TC_ACT_SHOT : rc;
}

/* The dispatcher goes on with this program, which then finds pkt.resumes: the verifier need
 * not look at another one with the same functions. */
SEC("tc")
int onpath_steer(struct __sk_buff *skb)
{
	struct pkt *p = packet();
	int rc, what;

	if (!p)
		return TC_ACT_SHOT;
	if (p->resumes) {
		p->resumes = 0;
		rc = behind_functions(skb, p);
	} else if (is_unselected(skb)) {
		return TC_ACT_UNSPEC;
	} else {
		what = check_device(skb);
		if (what == UNDERLAY_PASSES)
			return TC_ACT_UNSPEC;
		begin_packet(p, skb->ifindex);
		rc = at_device(skb, p, what);
	}
	if (rc == PUNT) {
		bpf_tail_call_static(skb, &stages, STAGE_PUNT);
		return TC_ACT_UNSPEC;
	}
	if (rc != RUN_FUNCTIONS)
		return finish(p, rc);
	bpf_tail_call_static(skb, &stages, STAGE_FUNCTIONS);
	return finish(p, drop(p, DROP_NO_INSTANCE)); /* there is no dispatcher */
}

char _license[] SEC("license") = "GPL";
