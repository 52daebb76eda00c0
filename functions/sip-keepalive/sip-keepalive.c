/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Answers the keep-alives that SIP user agents behind NATs send over UDP, in the server's
 * name, so that few reach it (NetServ §4.2): NOTIFY with Event: keep-alive, and OPTIONS
 * that ask for nothing else, get 200 OK (RFC 3261 §8.2.6), two line ends get one (RFC 5626
 * §3.5.1). All else goes on. One keep-alive in PROBE goes on to the server; until the
 * server has sent a packet after it, nothing is answered in the server's name. wasm only.
 */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");
ONPATH_WHOLE;
ONPATH_CONFIG({
	__u32 dry; /* 1: count what would be answered, and let it go on */
});
ONPATH_COUNTERS({ __u64 answered; __u64 passed; });

#define PROBE 5000000000ull /* ns */
#define ROOM 1500

struct server {
	__u8 address[16];
	__be16 port;
	__u8 family;
	__u8 pad;
};

struct life {
	__u64 probed; /* when a keep-alive last went on */
	__u64 alive;  /* 1: the server has sent a packet since */
};
ONPATH_TABLE(servers, LRU_HASH, struct server, struct life, 1024);

static __u8 answer[ROOM];

static int begins(const __u8 *s, const __u8 *end, const char *with)
{
	for (; *with; s++, with++)
		if (s >= end || (*s | 0x20) != (*with | 0x20))
			return 0;
	return 1;
}

static __u32 put(__u32 at, const void *from, __u32 n)
{
	if (at + n > ROOM)
		return ROOM + 1;
	__builtin_memcpy(answer + at, from, n);
	return at + n;
}

/* What a response takes over of its request: Via, From, To, Call-ID, CSeq. */
static int is_kept(const __u8 *line, const __u8 *end)
{
	switch (*line | 0x20) {
	case 'v':
		return begins(line, end, "Via:") || begins(line, end, "v:");
	case 'f':
		return begins(line, end, "From:") || begins(line, end, "f:");
	case 'c':
		return begins(line, end, "Call-ID:") || begins(line, end, "CSeq:");
	case 'i':
		return begins(line, end, "i:");
	}
	return 0;
}

static int has_tag(const __u8 *line, const __u8 *end)
{
	for (; line < end; line++)
		if (*line == ';' && begins(line, end, ";tag="))
			return 1;
	return 0;
}

/* Where the first \r is, or end. Eight bytes at a time: a byte is zero where the word
 * differs nowhere from eight of them. */
static const __u8 *line_end(const __u8 *s, const __u8 *end)
{
	for (; end - s >= 8; s += 8) {
		__u64 w;

		__builtin_memcpy(&w, s, 8);
		w ^= 0x0d0d0d0d0d0d0d0dull;
		w = (w - 0x0101010101010101ull) & ~w & 0x8080808080808080ull;
		if (w)
			return s + __builtin_ctzll(w) / 8;
	}
	while (s < end && *s != '\r')
		s++;
	return s;
}

/* What stands behind the name and the colon of a header field; 0: line is another. */
static const __u8 *value(const __u8 *line, const __u8 *end, const char *name)
{
	if (!begins(line, end, name))
		return 0;
	for (; *name; name++)
		line++;
	while (line < end && (*line == ' ' || *line == '\t'))
		line++;
	return line < end && *line == ':' ? line + 1 : 0;
}

/* The event package that user agents keep a NAT's entry alive by. */
static int is_keepalive(const __u8 *s, const __u8 *end)
{
	static const char name[] = "keep-alive";

	while (s < end && (*s == ' ' || *s == '\t'))
		s++;
	if (!begins(s, end, name))
		return 0;
	s += sizeof(name) - 1;
	return s == end || *s == '\r' || *s == ';' || *s == ' ' || *s == '\t';
}

static const __u8 *event_of(const __u8 *line, const __u8 *end)
{
	const __u8 *v = value(line, end, "Event");

	return v ? v : value(line, end, "o");
}

/* A field that asks for more than a sign of life: only the server can answer it. */
static int asks_more(const __u8 *line, const __u8 *end)
{
	return value(line, end, "Route") || value(line, end, "Require") || value(line, end, "Proxy-Require");
}

/* The response, from at on; where it ends, above ROOM if there is no room or the server
 * has to answer. A NOTIFY needs an event. */
static __u32 respond(__u32 at, const __u8 *s, const __u8 *end, int event)
{
	static const char ok[] = "SIP/2.0 200 OK\r\n", tail[] = "Content-Length: 0\r\n\r\n", tag[] = ";tag=onpath";
	const __u8 *event_is;
	int kept = 0;

	at = put(at, ok, sizeof(ok) - 1);
	while (s < end && at <= ROOM) {
		const __u8 *line = s;

		for (s = line_end(s, end); s + 1 < end && s[1] != '\n';)
			s = line_end(s + 1, end);
		if (s + 1 >= end)
			return ROOM + 1; /* no header ends so */
		s += 2;
		if (s == line + 2)
			return event || s < end || at > ROOM ? ROOM + 1 : put(at, tail, sizeof(tail) - 1);
		event_is = event_of(line, s);
		if (asks_more(line, s) || (event_is && !is_keepalive(event_is, s)))
			return ROOM + 1;
		if (event_is)
			event = 0;
		if ((*line == ' ' || *line == '\t') ? kept : (kept = is_kept(line, s))) {
			at = put(at, line, s - line);
		} else if (begins(line, s, "To:") || begins(line, s, "t:")) {
			at = put(at, line, s - 2 - line);
			if (!has_tag(line, s))
				at = put(at, tag, sizeof(tag) - 1);
			at = put(at, "\r\n", 2);
		}
	}
	return ROOM + 1;
}

/* Sums of RFC 1071 in the order of this machine's bytes, which they do not depend on. */
static __u64 add(__u64 sum, const __u8 *b, __u32 n)
{
	__u32 w;

	for (; n >= 8; n -= 8, b += 8) {
		__u64 v;

		__builtin_memcpy(&v, b, 8);
		sum += (v & 0xffffffff) + (v >> 32);
	}
	for (; n >= 2; n -= 2, b += 2)
		sum += b[0] | b[1] << 8;
	w = n ? b[0] : 0;
	return sum + w;
}

static void fold(__u8 *to, __u64 sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	sum = ~sum;
	to[0] = sum;
	to[1] = sum >> 8;
}

/* Headers of the answer to p, whose payload ends at end. */
static void head(const struct onpath_packet *p, __u32 ip, __u32 end)
{
	__u8 *a = answer, *u = answer + ip;
	__u32 udp = end - ip, size = p->family == 4 ? 4 : 16, src = p->family == 4 ? 12 : 8;

	__builtin_memset(a, 0, ip + 8);
	__builtin_memcpy(a + src, p->data + src + size, size);
	__builtin_memcpy(a + src + size, p->data + src, size);
	if (p->family == 4) {
		a[0] = 0x45;
		a[2] = end >> 8;
		a[3] = end;
		a[8] = 64;
		a[9] = ONPATH_UDP;
		fold(a + 10, add(0, a, 20));
	} else {
		a[0] = 0x60;
		a[4] = udp >> 8;
		a[5] = udp;
		a[6] = ONPATH_UDP;
		a[7] = 64;
	}
	__builtin_memcpy(u, &p->dport, 2);
	__builtin_memcpy(u + 2, &p->sport, 2);
	u[4] = udp >> 8;
	u[5] = udp;
	fold(u + 6, add(add(onpath_be16(ONPATH_UDP + udp), a + src, 2 * size), u, udp));
	if (!u[6] && !u[7])
		u[6] = u[7] = 0xff; /* RFC 768: 0 is none */
}

/* What is known of the server's end of p. */
static struct life *life_of(const __u8 *address, __be16 port, __u8 family, struct server *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	__builtin_memcpy(key->address, address, 16);
	key->port = port;
	key->family = family;
	return bpf_map_lookup_elem(&servers, key);
}

/* A server that is not known yet, or did not answer the last probe, answers by itself. */
static int may_answer(const struct onpath_packet *p)
{
	struct server key;
	struct life fresh = {}, *l = life_of(p->dst, p->dport, p->family, &key);

	if (l && p->now - l->probed < PROBE)
		return l->alive;
	fresh.probed = p->now;
	bpf_map_update_elem(&servers, &key, &fresh, 0);
	return 0;
}

ONPATH_FUNCTION(p)
{
	const __u8 *s = p->data + p->payload, *end = p->data + p->shown;
	__u32 ip = p->family == 4 ? 20 : 40, at = ip + 8;
	int alive;

	if (p->protocol != ONPATH_UDP || (p->is & (ONPATH_IS_FRAGMENT | ONPATH_IS_PORTLESS | ONPATH_IS_ERROR)))
		return ONPATH_NEXT;
	if (p->direction != ONPATH_FORWARD) {
		struct server key;
		struct life *l = life_of(p->src, p->sport, p->family, &key);

		if (l)
			l->alive = 1;
		return ONPATH_NEXT;
	}
	if (s >= end)
		return ONPATH_NEXT;
	if (end - s == 4 && begins(s, end, "\r\n\r\n"))
		at = put(at, "\r\n", 2);
	else if (begins(s, end, "NOTIFY "))
		at = respond(at, s, end, 1);
	else if (begins(s, end, "OPTIONS "))
		at = respond(at, s, end, 0);
	else
		at = ROOM + 1;
	if (at > ROOM) {
		onpath_count(passed, 1);
		return ONPATH_NEXT;
	}
	alive = may_answer(p);
	head(p, ip, at);
	if (onpath_configuration()->dry) {
		onpath_count(answered, 1);
		return ONPATH_NEXT;
	}
	if (!alive || onpath_send(answer, at) < 0) {
		onpath_count(passed, 1);
		return ONPATH_NEXT; /* the server has to */
	}
	onpath_count(answered, 1);
	return onpath_drop(p, 0);
}
