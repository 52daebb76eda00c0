/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * onpath's packet path. Four programs, all at tc ingress:
 *
 *   onpath_uplink    on uplinks: packets from outside, at the node's edge
 *   onpath_instance  on the node's end of an instance's vport
 *   onpath_tunnel    on the VXLAN device: packets from other nodes
 *   onpath_underlay  on the device that carries the tunnels: who may send any
 *
 * A packet's way: parse, flow entry, or else decide (tables, groups), send.
 * The hop limit goes down by one where a packet leaves at the edge and nowhere
 * else. So traceroute shows each routed instance, which counts as the router it
 * is, and then the gateway as one hop; bridged ones do not appear.
 */
#include "lib/send.h"

/* Look up the flow of pkt.key and do what it says. */
static __always_inline int steer(struct __sk_buff *skb, struct pkt *p)
{
	struct flow *e;
	int rc;

	p->learn = 0;
	p->now = now_seconds();
	e = bpf_map_lookup_elem(&flows, &p->key);
	if (!e || e->kind == NEXT_PENDING) {
		rc = p->is & IS_EDGE ? decide_edge(skb) : decide_instance(skb);
		if (rc != GO_ON)
			return rc;
	} else {
		if (!(p->is & IS_ERROR))
			touch(p, e);
		load_decision(&p->d, e);
	}
	if ((p->is & IS_EDGE) && (p->d.kind != NEXT_PASS || p->d.mirror_count))
		count_in(skb, p, p->prev_slot, p->prev);
	return send(skb);
}

/* To the tunnel port of this node or another? Elsewhere the port is anyone's. */
static __always_inline int to_tunnel(struct pkt *p, const struct node *n)
{
	if (p->key.proto != IPPROTO_UDP || (p->is & (IS_ERROR | IS_NOPORTS)) ||
	    bpf_ntohs(p->key.dport) != n->tunnel_port)
		return 0;
	return is_local(p, p->key.dst) || bpf_map_lookup_elem(&peer_addrs, &p->akey);
}

SEC("tc")
int onpath_uplink(struct __sk_buff *skb)
{
	struct node *n = this_node();
	struct pkt *p = packet();
	int rc;

	if (!n || !p || !n->edge || skb->pkt_type == PACKET_OTHERHOST)
		return TC_ACT_UNSPEC;
	p->ifindex = skb->ifindex;
	p->prev = n->edge;
	p->prev_slot = n->edge_slot;
	p->key.scope = n->edge;
	rc = parse(skb);
	if (rc == PARSE_ENCAP)
		count_encapsulated(1);
	if (rc != PARSE_IP)
		return TC_ACT_UNSPEC;
	p->is |= IS_EDGE;
	if (to_tunnel(p, n) && skb->ifindex != n->underlay_ifindex) {
		count_in(skb, p, p->prev_slot, p->prev);
		return drop(p, DROP_TUNNEL_SOURCE);
	}
	bpf_skb_load_bytes(skb, 0, p->macs, 12);
	rc = steer(skb, p);
	return rc == TC_ACT_OK ? TC_ACT_UNSPEC : rc; /* others on the device have their say */
}

SEC("tc")
int onpath_instance(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct node *n = this_node();
	struct pkt *p = packet();
	struct port *port = bpf_map_lookup_elem(&ports, &ifindex);
	int rc;

	if (!n || !p || !port)
		return TC_ACT_SHOT;
	p->ifindex = ifindex;
	p->prev = port->vport;
	p->prev_slot = port->slot;
	p->key.scope = port->vport;
	rc = parse(skb);
	if (rc == PARSE_OTHER || rc == PARSE_ENCAP)
		return TC_ACT_SHOT; /* ARP, spanning tree: nobody is there to hear it */
	if (rc == PARSE_MALFORMED)
		return drop(p, DROP_MALFORMED);
	if (p->key.family == FAMILY_6 ? confined(p->key.dst, FAMILY_6) || confined(p->key.src, FAMILY_6)
				      : *(__u8 *)p->key.dst >= 224)
		return TC_ACT_SHOT; /* ND, MLD, mDNS: likewise */
	count_in(skb, p, port->slot, port->vport);
	if (to_tunnel(p, n))
		return drop(p, DROP_TUNNEL_SOURCE);
	bpf_skb_load_bytes(skb, 0, p->macs, 12);
	return steer(skb, p);
}

/* A packet for vport x from another node: what the sender's entry decided. */
static __always_inline int receive(struct __sk_buff *skb, struct pkt *p, struct node *n, __u32 vni)
{
	struct vport *v;
	struct flow *e;
	__u32 slot = 0;

	p->d.kind = NEXT_VPORT;
	p->d.next = vni;
	p->d.slot = 0;
	p->d.context = p->d.path = p->d.path_slot = p->d.flags = p->d.mirror_count = 0;
	p->d.tenant = p->d.bypassed = 0;
	if (p->d.group) {
		__u32 id = p->d.group;
		struct group *g = bpf_map_lookup_elem(&groups, &id);

		if (g) {
			p->d.path = g->path;
			p->d.path_slot = g->path_slot;
			p->d.flags = g->flags & GROUP_REVERSE ? FLOW_REVERSE : 0;
		} else {
			p->d.path = id >> 6;
			p->d.flags = id & 1 ? FLOW_REVERSE : 0;
		}
	}
	p->now = now_seconds();
	reverse_key(&p->rkey, &p->key, vni);
	e = bpf_map_lookup_elem(&flows, &p->rkey);
	p->learn = !e || e->seen != p->now || e->next != p->prev;
	if (vni == n->edge) {
		p->d.kind = NEXT_EXIT;
		p->d.context = p->d.group;
		p->d.group = 0;
		return send(skb);
	}
	v = vport_of(&slot, vni);
	if (!v || v->kind == VPORT_REMOTE)
		return drop(p, DROP_UNKNOWN_VPORT);
	p->d.slot = slot;
	return send(skb);
}

SEC("tc")
int onpath_tunnel(struct __sk_buff *skb)
{
	struct node *n = this_node();
	struct pkt *p = packet();
	struct bpf_tunnel_key *key;
	struct peer_ref *peer;
	struct vport *prev;
	__u64 flags;
	__u8 head[12];
	int rc;

	if (!n || !p)
		return TC_ACT_SHOT;
	key = &p->tunnel;
	p->ifindex = skb->ifindex;
	p->prev_slot = 0;
	p->packets = 1;
	flags = n->underlay_family == FAMILY_6 ? BPF_F_TUNINFO_IPV6 : 0;
	if (bpf_skb_get_tunnel_key(skb, key, TUNNEL_KEY_SIZE, flags))
		return drop(p, DROP_TUNNEL_SOURCE);
	__builtin_memset(&p->akey, 0, sizeof(p->akey));
	if (flags) {
		p->akey.family = FAMILY_6;
		copy_addr(p->akey.addr, key->remote_ipv6);
	} else {
		p->akey.family = FAMILY_4;
		*(__u32 *)p->akey.addr = bpf_htonl(key->remote_ipv4);
	}
	peer = bpf_map_lookup_elem(&peer_addrs, &p->akey);
	if (!peer || key->tunnel_ttl != 255)
		return drop(p, DROP_TUNNEL_SOURCE);
	if (bpf_skb_load_bytes(skb, 0, head, sizeof(head)))
		return drop(p, DROP_MALFORMED);
	if (get24(head + 9) != peer->secret)
		return drop(p, DROP_TUNNEL_SECRET);
	p->prev = get24(head);
	p->d.entry = get24(head + 3);
	p->d.group = get24(head + 6);
	p->key.scope = p->prev;
	prev = vport_of(&p->prev_slot, p->prev);
	if (!prev || prev->kind != VPORT_REMOTE || prev->peer != peer->slot)
		p->prev_slot = 0;
	rc = parse(skb);
	if (rc != PARSE_IP)
		return drop(p, DROP_MALFORMED);
	p->is |= IS_REMOTE;
	__builtin_memcpy(p->macs, head, 12);
	count_in(skb, p, p->prev_slot, p->prev);
	return receive(skb, p, n, key->tunnel_id);
}

/* Only known nodes, one hop away as hop limits tell, may send tunnel packets. */
SEC("tc")
int onpath_underlay(struct __sk_buff *skb)
{
	struct node *n = this_node();
	struct addr_key from = {};
	__be16 type, dport = 0;
	__u8 ttl = 0;

	if (!n || bpf_skb_load_bytes(skb, 12, &type, 2))
		return TC_ACT_UNSPEC;
	if (type == bpf_htons(ETH_P_IP)) {
		struct iphdr h;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &h, sizeof(h)) || h.protocol != IPPROTO_UDP ||
		    (h.frag_off & bpf_htons(0x1fff)))
			return TC_ACT_UNSPEC;
		if (bpf_skb_load_bytes(skb, ETH_HLEN + h.ihl * 4 + 2, &dport, 2))
			return TC_ACT_UNSPEC;
		from.family = FAMILY_4;
		*(__u32 *)from.addr = h.saddr;
		ttl = h.ttl;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr h;

		if (bpf_skb_load_bytes(skb, ETH_HLEN, &h, sizeof(h)) || h.nexthdr != IPPROTO_UDP ||
		    bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(h) + 2, &dport, 2))
			return TC_ACT_UNSPEC;
		from.family = FAMILY_6;
		copy_addr(from.addr, &h.saddr);
		ttl = h.hop_limit;
	}
	if (bpf_ntohs(dport) != n->tunnel_port)
		return TC_ACT_UNSPEC;
	if (ttl == 255 && bpf_map_lookup_elem(&peer_addrs, &from))
		return TC_ACT_UNSPEC;
	{
		struct pkt *p = packet();

		if (!p)
			return TC_ACT_SHOT;
		p->prev_slot = 0;
		p->packets = 1;
		return drop(p, DROP_TUNNEL_SOURCE);
	}
}

char _license[] SEC("license") = "GPL";
