/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The two ends of a measurement.
 *
 * generate runs in the kernel by BPF_PROG_TEST_RUN with live frames: each run
 * makes one UDP frame and sends it out of the device on which the kernel lets it
 * run. Frames are recycled after whoever received them changed them, so all is
 * written anew on every run. sink sits on the device at which the frames end,
 * counts what generate made, and drops it.
 *
 * Layouts are shared with bench/traffic/traffic.go.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FRAME_LEN 60 /* and four of checksum on a wire that has one: 64 */
#define MAX_LEN   1514
#define MAGIC     0x6f70

#define ORDER_RANDOM     0 /* each flow with equal chance */
#define ORDER_SEQUENTIAL 1 /* one after the other, round and round */

#define FLAG_BACK  1 /* source and destination exchanged: answers */
#define FLAG_STAMP 2 /* with the time of sending */
#define FLAG_PAIRS 4 /* of TCP: a SYN of each flow, and an acknowledgement of anything */
#define FLAG_SYNS  8 /* of TCP: a SYN of each flow */

/* By so many flows the acknowledgement follows its SYN, which is answered meanwhile. */
#define PAIR_LAG 512

/* Flow i has the source address addr + (i mod 2^20) and the source port
 * port + i / 2^20. */
#define ADDR_BITS 20

struct plan {
	__u8 dst[6], src[6];
	__u16 port, dport;
	__u32 addr, daddr; /* host order */
	__u32 flows;
	__u32 order;
	__u32 flags;
	__u32 first;    /* flow */
	__u64 time;     /* ns to send for; 0: without end */
	__u64 interval; /* ns/256 between two frames; 0: none */
	__u32 length;   /* of a frame; its last bytes are struct body */
	__u32 pad;
};

struct progress {
	__u64 sent;
	__u64 random;
	__u64 begin, last; /* ns */
	__u64 counted;     /* frames sent by then */
	__u64 due;         /* ns/256, the next frame of a paced source */
	__u32 runs;
	__u32 next;        /* flow */
	__u32 over;
	__u32 pad;
};

struct body {
	__be16 magic;
	__u64 stamp; /* ns, 0: none */
	__u64 sequence;
} __attribute__((packed));

/* Delays are counted in classes: 32 to each power of two, from 64 ns on. */
#define CLASS_BITS 5
#define CLASSES    896

struct seen {
	__u64 packets;
	__u64 bytes;
	__u64 first, last; /* ns, of the packets counted */
	__u64 delays[CLASSES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct plan);
	__uint(max_entries, 1);
} plans SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct progress);
	__uint(max_entries, 1);
} progress SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__type(key, __u32);
	__type(value, struct seen);
	__uint(max_entries, 1);
} seen SEC(".maps");

/* xorshift64*, which is random enough to defeat caches. */
static __always_inline __u32 draw(struct progress *s)
{
	__u64 x = s->random;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	s->random = x;
	return (x * 0x2545f4914f6cdd1dull) >> 32;
}

static __always_inline __u32 choose(const struct plan *p, struct progress *s)
{
	__u32 i;

	if (p->flows <= 1)
		return p->first;
	if (p->order == ORDER_RANDOM)
		return p->first + (((__u64)draw(s) * p->flows) >> 32);
	i = s->next++;
	if (s->next >= p->flows)
		s->next = 0;
	return p->first + i;
}

/* The checksum over 20 bytes and what is summed already. */
static __always_inline __u16 header_sum(const void *header, __u32 sum)
{
	const __u16 *w = header;
	int i;

#pragma unroll
	for (i = 0; i < 10; i++)
		sum += w[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Read the clock, which costs as much as a tenth of a frame, once in so many runs. */
#define CLOCK_RUNS 256

/* A paced source that was late makes good at most so many frames at once. */
#define MAX_BURST 64

/* May this run send a frame? */
static __always_inline int may_send(const struct plan *p, struct progress *s)
{
	__u64 now, fine;

	if (s->over)
		return 0;
	if (!p->interval && (s->runs++ & (CLOCK_RUNS - 1)))
		return 1;
	now = bpf_ktime_get_ns();
	if (!s->begin)
		s->begin = now;
	s->last = now;
	s->counted = s->sent;
	if (p->time && now - s->begin >= p->time) {
		s->over = 1;
		return 0;
	}
	if (!p->interval)
		return 1;
	fine = now << 8;
	if (fine < s->due)
		return 0;
	if (fine - s->due > MAX_BURST * p->interval)
		s->due = fine - MAX_BURST * p->interval;
	s->due += p->interval;
	return 1;
}

/* The body that begins so far into a frame, or none. The verifier has to see the offset
 * bounded before it is added. */
static __always_inline struct body *body_at(void *data, __u32 at)
{
	asm volatile("" : "+r"(at));
	if (at < FRAME_LEN - sizeof(struct body) || at > MAX_LEN)
		return 0;
	return data + at;
}

/* A TCP header, as of whoever opens a connection and guesses the other end's number. */
static __always_inline void write_tcp(const struct iphdr *ip, __u16 port, __u16 dport, int syn, __u32 guess)
{
	struct tcphdr *tcp = (void *)(ip + 1);
	const __u16 *ends = (const __u16 *)&ip->saddr;

	__builtin_memset(tcp, 0, sizeof(*tcp));
	tcp->source = bpf_htons(port);
	tcp->dest = bpf_htons(dport);
	tcp->seq = bpf_htonl(syn ? 1000 : 1001);
	tcp->ack_seq = syn ? 0 : bpf_htonl(guess);
	tcp->doff = 5;
	tcp->syn = syn;
	tcp->ack = !syn;
	tcp->window = bpf_htons(0xffff);
	tcp->check = header_sum(tcp, ends[0] + ends[1] + ends[2] + ends[3] + bpf_htons(IPPROTO_TCP) + bpf_htons(sizeof(*tcp)));
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct udphdr *udp = (void *)(ip + 1);
	struct body *b;
	struct progress *s;
	struct plan *p;
	__u32 zero = 0, i, addr, length, at, second;
	__u16 port;

	if (data + FRAME_LEN > end)
		return XDP_ABORTED;
	p = bpf_map_lookup_elem(&plans, &zero);
	s = bpf_map_lookup_elem(&progress, &zero);
	if (!p || !s)
		return XDP_ABORTED;
	length = p->length;
	at = length - sizeof(*b);
	b = body_at(data, at);
	if (!b)
		return XDP_ABORTED;
	if ((void *)(b + 1) > end)
		return XDP_ABORTED;
	if (!may_send(p, s))
		return XDP_DROP; /* the frame is taken back */
	second = (p->flags & FLAG_PAIRS) && (s->sent & 1);
	if (second)
		i = p->first + (s->next > PAIR_LAG ? s->next - PAIR_LAG : 0);
	else
		i = choose(p, s);
	addr = p->addr + (i & ((1 << ADDR_BITS) - 1));
	port = p->port + (i >> ADDR_BITS);

	__builtin_memcpy(eth->h_dest, p->dst, 6);
	__builtin_memcpy(eth->h_source, p->src, 6);
	eth->h_proto = bpf_htons(ETH_P_IP);
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = 0;
	ip->tot_len = bpf_htons(length - sizeof(*eth));
	ip->id = 0;
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = 64;
	ip->protocol = IPPROTO_UDP;
	ip->check = 0;
	if (p->flags & FLAG_BACK) {
		ip->saddr = bpf_htonl(p->daddr);
		ip->daddr = bpf_htonl(addr);
		udp->source = bpf_htons(p->dport);
		udp->dest = bpf_htons(port);
	} else {
		ip->saddr = bpf_htonl(addr);
		ip->daddr = bpf_htonl(p->daddr);
		udp->source = bpf_htons(port);
		udp->dest = bpf_htons(p->dport);
	}
	if (p->flags & (FLAG_PAIRS | FLAG_SYNS)) {
		ip->protocol = IPPROTO_TCP;
		ip->tot_len = bpf_htons(sizeof(*ip) + sizeof(struct tcphdr));
		ip->check = header_sum(ip, 0);
		write_tcp(ip, port, p->dport, !second, draw(s));
		s->sent++;
		return XDP_TX;
	}
	ip->check = header_sum(ip, 0);
	udp->len = bpf_htons(length - sizeof(*eth) - sizeof(*ip));
	udp->check = 0; /* none, which IPv4 allows */
	b->magic = bpf_htons(MAGIC);
	b->sequence = s->sent++;
	b->stamp = p->flags & FLAG_STAMP ? bpf_ktime_get_ns() : 0;
	return XDP_TX;
}

/* The class of a delay: its power of two and the CLASS_BITS bits below. */
static __always_inline __u32 class_of(__u64 ns)
{
	__u32 shift = 0, c;
	__u64 v = ns >> 1; /* to 64 ns, one class for each 2 ns */

	if (v >> 32)
		return CLASSES - 1;
	if (v >> 16) { shift += 16; v >>= 16; }
	if (v >> 8) { shift += 8; v >>= 8; }
	if (v >> 4) { shift += 4; v >>= 4; }
	if (v >> 2) { shift += 2; v >>= 2; }
	if (v >> 1) { shift += 1; }
	v = ns >> 1;
	if (shift < CLASS_BITS)
		return v;
	c = ((shift - CLASS_BITS + 1) << CLASS_BITS) + ((v >> (shift - CLASS_BITS)) & ((1 << CLASS_BITS) - 1));
	return c < CLASSES ? c : CLASSES - 1;
}

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct body *b;
	struct seen *s;
	__u32 zero = 0, class, at;
	__u64 now;

	if ((void *)(ip + 1) > end)
		return XDP_PASS;
	at = sizeof(*eth) + bpf_ntohs(ip->tot_len) - sizeof(*b);
	b = body_at(data, at);
	if (!b || (void *)(b + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_UDP || b->magic != bpf_htons(MAGIC))
		return XDP_PASS;
	s = bpf_map_lookup_elem(&seen, &zero);
	if (!s)
		return XDP_ABORTED;
	s->packets++;
	s->bytes += end - data;
	if (!b->stamp)
		return XDP_DROP;
	now = bpf_ktime_get_ns();
	if (!s->first)
		s->first = now;
	s->last = now;
	class = class_of(now - b->stamp);
	if (class < CLASSES)
		s->delays[class]++;
	return XDP_DROP;
}

char _license[] SEC("license") = "GPL";
