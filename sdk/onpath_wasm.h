/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * onpath.h for WebAssembly: what the kernel does for an ebpf function stands here as
 * code of the module's own. onpath.h includes it; authors include onpath.h.
 *
 *	clang -O2 --target=wasm32 -nostdlib -fvisibility=hidden -mbulk-memory \
 *		-Wl,--no-entry -I…/sdk mine.c -o mine.wasm
 *
 * A module meets events, one at a time: packets, a timer, a datagram, a request. The
 * host calls what the module exports, and offers building blocks, whose names are
 * versioned ("kv/1"): a module that uses one is only placed where it is offered.
 */
#ifndef ONPATH_WASM_H
#define ONPATH_WASM_H

#define ONPATH_ABI 1

#define ONPATH_EXPORT(name_) __attribute__((export_name(#name_), used))
#define ONPATH_IMPORT(block_, name_) __attribute__((import_module(block_), import_name(#name_)))

/* packet/1: an IP packet leaves as if it came out of this element. 0, or below 0: it is
 * too long, or over what emit allows. */
ONPATH_IMPORT("packet/1", send) int onpath_send(const void *packet, __u32 length);
/* log/1: a line in the instance's log. */
ONPATH_IMPORT("log/1", write) void onpath_log(const char *text, __u32 length);
/* metric/1: numbers by name, beside ONPATH_COUNTERS. */
ONPATH_IMPORT("metric/1", set) void onpath_metric(const char *name, __u32 length, __u64 value);
/* clock/1: nanoseconds, since 1970 and since the machine began. */
ONPATH_IMPORT("clock/1", now) __u64 onpath_now(void);
ONPATH_IMPORT("clock/1", monotonic) __u64 bpf_ktime_get_ns(void);
/* random/1 */
ONPATH_IMPORT("random/1", u32) __u32 bpf_get_prandom_u32(void);
ONPATH_IMPORT("random/1", fill) void onpath_random(void *to, __u32 length);
/* timer/1: ONPATH_TIMER every so many milliseconds from now on; 0: never. */
ONPATH_IMPORT("timer/1", every) void onpath_every(__u32 milliseconds);
/* config/1: a configuration value by name, which is text. Its length, which may be
 * above room, or below 0: there is none. */
ONPATH_IMPORT("config/1", get) int onpath_config_get(const char *name, __u32 length, void *value, __u32 room);
/* kv/1: state that outlives the module's replacement. get: the length, or below 0; put:
 * below 0 when the quota is used up. */
ONPATH_IMPORT("kv/1", get) int onpath_kv_get(const void *key, __u32 length, void *value, __u32 room);
ONPATH_IMPORT("kv/1", put) int onpath_kv_put(const void *key, __u32 length, const void *value, __u32 size);
ONPATH_IMPORT("kv/1", delete) int onpath_kv_delete(const void *key, __u32 length);
/* datagram/1: a UDP datagram from the instance's own address; from: 0, or one of the
 * function's ports. 0, or below 0. What answers the datagram at hand, to its sender and from
 * its port, comes from the address that it went to. */
ONPATH_IMPORT("datagram/1", send) int onpath_datagram_send(__u32 from, const __u8 *to, __u32 port, const void *data, __u32 length);
/* http/1: the answer to the request at hand, once. */
ONPATH_IMPORT("http/1", respond) int onpath_respond(__u32 status, const char *type, __u32 type_length, const void *body, __u32 length);

/* Streams: fetches, and requests that are kept, have numbers of 1 and more, and are told of
 * by ONPATH_EVENT. */
/* body/1: requests that are answered later, or in pieces. In ONPATH_REQUEST keep gives the
 * request's stream, or below 0: there are too many. Then begin says status and header, as
 * lines "Name: value"; write adds to the body, whole or not at all: 0, or below 0: its client
 * has to read first, and ONPATH_ROOM tells when; blob adds length bytes of a blob from offset
 * on, also of one that is still being written (length 0: all the rest); end ends the answer. */
ONPATH_IMPORT("body/1", keep) int onpath_keep(void);
ONPATH_IMPORT("body/1", begin) int onpath_begin(int stream, __u32 status, const char *header, __u32 length);
ONPATH_IMPORT("body/1", write) int onpath_write(int stream, const void *data, __u32 length);
ONPATH_IMPORT("body/1", blob) int onpath_write_blob(int stream, const void *key, __u32 length, __u64 offset, __u64 size);
ONPATH_IMPORT("body/1", end) int onpath_end(int stream);
/* A line of the header of the request at hand, by name. Its length, which may be above room,
 * or below 0: there is none. */
ONPATH_IMPORT("body/1", header) int onpath_header(const char *name, __u32 length, void *value, __u32 room);
/* The next piece of the body of a request that is kept; ONPATH_PIECE or ONPATH_END tells it.
 * 0, or below 0: it is asked for and has not come yet (-1), or nothing comes (-2). */
ONPATH_IMPORT("body/1", read) int onpath_read(int stream);
/* A stream is given up. Nothing more is told of it. */
ONPATH_IMPORT("body/1", cancel) int onpath_cancel(int stream);
/* Likewise for fetches. */
ONPATH_IMPORT("fetch/1", read) int onpath_fetch_read(int stream);
ONPATH_IMPORT("fetch/1", cancel) int onpath_fetch_cancel(int stream);
/* fetch/1: an HTTP GET at a host that the function names (fetch), with header lines of its
 * own. The stream, or below 0: over the quota (-1), not a host that is named (-2), too long (-3).
 * ONPATH_HEAD is the first to come. Redirects are told, not followed. */
ONPATH_IMPORT("fetch/1", get) int onpath_fetch(const char *url, __u32 length, const char *header, __u32 header_length);
/* The rest of the fetch becomes a blob, with words about it; ONPATH_END or ONPATH_FAILED tells. */
ONPATH_IMPORT("fetch/1", store) int onpath_fetch_store(int stream, const void *key, __u32 length, const void *about, __u32 size);
/* blob/1: bytes on disk by name, which outlive the module's replacement; where there is no
 * room, the blob goes that was not asked for longest. find: what is known of a blob and, in
 * about, the words that were stored with it. 0, or below 0: there is none. */
struct onpath_blob {
	__u64 size;    /* bytes that are there */
	__u32 whole;   /* 1: no more come */
	__u32 about;   /* bytes of the words */
};
ONPATH_IMPORT("blob/1", find) int onpath_blob_find(const void *key, __u32 length, struct onpath_blob *blob, void *about, __u32 room);
/* create begins one, add adds bytes, and whole says that there are all; until then find finds
 * it, and it is lost if the module goes. Below 0: there is no room, or nobody writes it. */
ONPATH_IMPORT("blob/1", create) int onpath_blob_create(const void *key, __u32 length, const void *about, __u32 size);
ONPATH_IMPORT("blob/1", add) int onpath_blob_add(const void *key, __u32 length, const void *data, __u32 size);
ONPATH_IMPORT("blob/1", whole) int onpath_blob_whole(const void *key, __u32 length);
/* read: how many bytes, or below 0. */
ONPATH_IMPORT("blob/1", read) int onpath_blob_read(const void *key, __u32 length, __u64 offset, void *to, __u32 room);
ONPATH_IMPORT("blob/1", delete) int onpath_blob_delete(const void *key, __u32 length);
/* notify/1: a notification to the owner (onpath notifications, Webhooks); level 0: info,
 * 1: warning, 2: critical. 0, or below 0: over the quota, or too long. */
ONPATH_IMPORT("notify/1", send) int onpath_notify(__u32 level, const char *title, __u32 title_length, const char *text, __u32 length);

#define ONPATH_BATCH 64       /* most packets of one event */
#ifndef ONPATH_BUFFER
#define ONPATH_BUFFER 8192    /* bytes of a datagram or request; a source may define up to 65536 */
#endif

/* Everything that the host must know of the module. Texts end with a zero byte. */
struct onpath_description {
	__u32 abi;
	__u32 packets, stride, batch; /* an array of struct onpath_packet */
	__u32 verdicts;               /* one byte for each */
	__u32 needs;                  /* bytes of a packet's data to be shown */
	__u32 config, config_size, config_text;
	__u32 counters, counters_size, counters_text;
	__u32 buffer, buffer_size;    /* where a datagram or request stands */
	__u32 license;
};

#define ONPATH_WEAK __attribute__((weak)) extern
ONPATH_WEAK const char onpath_license[];
ONPATH_WEAK const __u32 onpath_needs;
ONPATH_WEAK struct onpath_config onpath_config_data;
ONPATH_WEAK const __u32 onpath_config_size;
ONPATH_WEAK const char onpath_config_text[];
ONPATH_WEAK struct onpath_counters onpath_counters_data;
ONPATH_WEAK const __u32 onpath_counters_size;
ONPATH_WEAK const char onpath_counters_text[];
ONPATH_WEAK __u8 onpath_buffer[];
ONPATH_WEAK struct onpath_packet onpath_packet_array[];
ONPATH_WEAK __u8 onpath_verdicts[];

static struct onpath_description onpath_description;

#define ONPATH_AT(x_) ((__u32)(unsigned long)(x_))

ONPATH_EXPORT(onpath_describe) struct onpath_description *onpath_describe(void)
{
	struct onpath_description *d = &onpath_description;

	d->abi = ONPATH_ABI;
	d->license = ONPATH_AT(onpath_license);
	d->packets = ONPATH_AT(onpath_packet_array);
	d->verdicts = ONPATH_AT(onpath_verdicts);
	d->stride = sizeof(struct onpath_packet);
	d->batch = ONPATH_BATCH;
	d->needs = &onpath_needs ? onpath_needs : 0;
	d->config = ONPATH_AT(&onpath_config_data);
	d->config_size = &onpath_config_size ? onpath_config_size : 0;
	d->config_text = ONPATH_AT(onpath_config_text);
	d->counters = ONPATH_AT(&onpath_counters_data);
	d->counters_size = &onpath_counters_size ? onpath_counters_size : 0;
	d->counters_text = ONPATH_AT(onpath_counters_text);
	d->buffer = ONPATH_AT(onpath_buffer);
	d->buffer_size = ONPATH_BUFFER;
	return d;
}

#define ONPATH_LICENSE(name_) const char onpath_license[] = name_

#define ONPATH_FUNCTION(p)							\
	static inline int onpath_body(struct onpath_packet *p);			\
	struct onpath_packet onpath_packet_array[ONPATH_BATCH];			\
	__u8 onpath_verdicts[ONPATH_BATCH];					\
	ONPATH_EXPORT(onpath_packets) void onpath_packets(__u32 n)		\
	{									\
		for (__u32 i = 0; i < n && i < ONPATH_BATCH; i++)		\
			onpath_verdicts[i] = onpath_body(&onpath_packet_array[i]); \
	}									\
	static inline int onpath_body(struct onpath_packet *p)

/* Once, before anything else. */
#define ONPATH_START ONPATH_EXPORT(onpath_start) void onpath_start(void)

/* What onpath_every asked for. */
#define ONPATH_TIMER ONPATH_EXPORT(onpath_timer) void onpath_timer(void)

/* A datagram that came to one of the function's ports. */
struct onpath_datagram {
	__u8 src[16];
	__be16 sport;
	__be16 port;
	__u32 length;
	__u8 data[];
};

#define ONPATH_DATAGRAM(d)							\
	static void onpath_datagram_body(struct onpath_datagram *d);		\
	__u8 onpath_buffer[ONPATH_BUFFER] __attribute__((aligned(8)));		\
	ONPATH_EXPORT(onpath_datagram) void onpath_datagram(void)		\
	{									\
		onpath_datagram_body((struct onpath_datagram *)onpath_buffer);	\
	}									\
	static void onpath_datagram_body(struct onpath_datagram *d)

/* An HTTP request: method, path with its query, host and body, whose lengths are those
 * before data, in which they stand one behind the other. A body that is longer than the
 * buffer has the length ONPATH_LONG, where the module uses body/1: onpath_read reads it. */
#define ONPATH_LONG 0xffffffffu
struct onpath_request {
	__u32 method, path, host, body;
	__u8 data[];
};

#define ONPATH_REQUEST(r)							\
	static void onpath_request_body(struct onpath_request *r);		\
	ONPATH_WEAK __u8 onpath_buffer[];					\
	__u8 onpath_buffer[ONPATH_BUFFER] __attribute__((aligned(8)));		\
	ONPATH_EXPORT(onpath_request) void onpath_request(void)			\
	{									\
		onpath_request_body((struct onpath_request *)onpath_buffer);	\
	}									\
	static void onpath_request_body(struct onpath_request *r)

/* What became of a stream. */
#define ONPATH_HEAD   1 /* of a fetch: status, and in data its header as lines "Name: value" */
#define ONPATH_PIECE  2 /* what onpath_read asked for */
#define ONPATH_END    3 /* no more comes */
#define ONPATH_FAILED 4 /* it ended early; data says why. Of an answer: the client is gone */
#define ONPATH_ROOM   5 /* an answer takes more again */
#define ONPATH_SENT   6 /* an answer is sent; the stream is over */

struct onpath_event {
	int stream;
	__u32 what;
	__u32 status;
	__u32 length;
	__u8 data[];
};

#define ONPATH_EVENT(e)								\
	static void onpath_event_body(struct onpath_event *e);			\
	ONPATH_WEAK __u8 onpath_buffer[];					\
	__u8 onpath_buffer[ONPATH_BUFFER] __attribute__((aligned(8)));		\
	ONPATH_EXPORT(onpath_event) void onpath_event(void)			\
	{									\
		onpath_event_body((struct onpath_event *)onpath_buffer);	\
	}									\
	static void onpath_event_body(struct onpath_event *e)

#define ONPATH_NEEDS(n)								\
	_Static_assert((n) > 0 && (n) <= ONPATH_DATA, "ONPATH_NEEDS: at most ONPATH_DATA bytes"); \
	const __u32 onpath_needs = n

/* The function sees whole packets, from the IP header on, and may write into them. */
#define ONPATH_WHOLE ONPATH_NEEDS(ONPATH_DATA)

/* The packet goes on as p->data has it now, p->length bytes. Checksums are the function's
 * business. */
static inline void onpath_rewritten(struct onpath_packet *p)
{
	p->edit |= ONPATH_SET_DATA;
}

#define ONPATH_TEXT_(...) #__VA_ARGS__
#define ONPATH_TEXT(...) ONPATH_TEXT_(__VA_ARGS__)

#define ONPATH_CONFIG(...)							\
	struct onpath_config __VA_ARGS__;					\
	struct onpath_config onpath_config_data;				\
	const __u32 onpath_config_size = sizeof(struct onpath_config);		\
	const char onpath_config_text[] = ONPATH_TEXT(__VA_ARGS__);		\
	static inline const struct onpath_config *onpath_configuration(void)	\
	{									\
		return &onpath_config_data;					\
	}

#define ONPATH_COUNTERS(...)							\
	struct onpath_counters __VA_ARGS__;					\
	struct onpath_counters onpath_counters_data;				\
	const __u32 onpath_counters_size = sizeof(struct onpath_counters);	\
	const char onpath_counters_text[] = ONPATH_TEXT(__VA_ARGS__)

#define onpath_count(name_, n_) (onpath_counters_data.name_ += (n_))

/* Tables: what the kernel's do, in the module's memory. PERCPU ones have one value. */
#define ONPATH_KIND_HASH            0
#define ONPATH_KIND_LRU_HASH        1
#define ONPATH_KIND_ARRAY           2
#define ONPATH_KIND_PERCPU_HASH     0
#define ONPATH_KIND_LRU_PERCPU_HASH 1
#define ONPATH_KIND_PERCPU_ARRAY    2

struct onpath_entry {
	__u32 next; /* 1 and more: an entry */
	__u32 used; /* LRU: looked at since the hand passed; HASH: 1, in use */
};

struct onpath_table_state {
	__u32 count; /* entries ever used */
	__u32 free;  /* list of entries deleted */
	__u32 hand;  /* LRU: where the search for one to give up goes on */
};

/* What the compiler knows of a table: lookups are made for its sizes. */
struct onpath_table {
	__u32 kind, key_size, value_size, max;
	__u32 stride, key_at, value_at, buckets;
	__u32 *heads;
	__u8 *entries;
	struct onpath_table_state *state;
};

#define ONPATH_TABLE(name_, kind_, key_, value_, max_)				\
	struct name_##_entry {							\
		struct onpath_entry head;					\
		key_ key;							\
		value_ value;							\
	};									\
	static struct name_##_entry name_##_entries[max_];			\
	static __u32 name_##_heads[ONPATH_KIND_##kind_ == 2 ? 1 : (max_)];	\
	static struct onpath_table_state name_##_state;				\
	static const struct onpath_table name_ = {				\
		.kind = ONPATH_KIND_##kind_, .max = (max_),			\
		.key_size = sizeof(key_), .value_size = sizeof(value_),		\
		.stride = sizeof(struct name_##_entry),				\
		.key_at = __builtin_offsetof(struct name_##_entry, key),	\
		.value_at = __builtin_offsetof(struct name_##_entry, value),	\
		.buckets = sizeof(name_##_heads) / sizeof(__u32),		\
		.heads = name_##_heads, .entries = (__u8 *)name_##_entries,	\
		.state = &name_##_state,					\
	}

static __always_inline __u32 onpath_key_hash(const __u8 *k, __u32 n)
{
	__u64 h = n * 0x9e3779b97f4a7c15ull, w;
	__u32 i = 0;

	for (; i + 8 <= n; i += 8) {
		__builtin_memcpy(&w, k + i, 8);
		h = (h ^ w) * 0xff51afd7ed558ccdull;
		h ^= h >> 32;
	}
	w = 0;
	__builtin_memcpy(&w, k + i, n - i);
	h = (h ^ w) * 0xc4ceb9fe1a85ec53ull;
	return h ^ (h >> 32);
}

static __always_inline int onpath_same(const __u8 *a, const __u8 *b, __u32 n)
{
	__u64 v, w;
	__u32 i = 0;

	for (; i + 8 <= n; i += 8) {
		__builtin_memcpy(&v, a + i, 8);
		__builtin_memcpy(&w, b + i, 8);
		if (v != w)
			return 0;
	}
	for (; i < n; i++)
		if (a[i] != b[i])
			return 0;
	return 1;
}

static __always_inline void onpath_copy(void *to, const void *from, __u32 n)
{
	__u8 *t = to;
	const __u8 *f = from;

	for (__u32 i = 0; i < n; i++)
		t[i] = f[i];
}

static __always_inline __u8 *onpath_entry_at(const struct onpath_table *t, __u32 i)
{
	return t->entries + (i - 1) * t->stride;
}

static __always_inline __u32 *onpath_head(const struct onpath_table *t, const void *key)
{
	return &t->heads[onpath_key_hash(key, t->key_size) % t->buckets];
}

/* The entry of a key: its number, or 0. */
static __always_inline __u32 onpath_find(const struct onpath_table *t, const void *key)
{
	for (__u32 i = *onpath_head(t, key); i; i = ((struct onpath_entry *)onpath_entry_at(t, i))->next)
		if (onpath_same(onpath_entry_at(t, i) + t->key_at, key, t->key_size))
			return i;
	return 0;
}

static __always_inline void *bpf_map_lookup_elem(const struct onpath_table *t, const void *key)
{
	__u32 i;
	__u8 *e;

	if (t->kind == ONPATH_KIND_ARRAY) {
		__builtin_memcpy(&i, key, 4);
		return i < t->max ? onpath_entry_at(t, i + 1) + t->value_at : 0;
	}
	i = onpath_find(t, key);
	if (!i)
		return 0;
	e = onpath_entry_at(t, i);
	((struct onpath_entry *)e)->used = 2;
	return e + t->value_at;
}

static int bpf_map_delete_elem(const struct onpath_table *t, const void *key)
{
	__u32 *link;

	if (t->kind == ONPATH_KIND_ARRAY)
		return -22;
	for (link = onpath_head(t, key); *link;) {
		__u8 *e = onpath_entry_at(t, *link);
		struct onpath_entry *h = (struct onpath_entry *)e;
		__u32 i = *link;

		if (!onpath_same(e + t->key_at, key, t->key_size)) {
			link = &h->next;
			continue;
		}
		*link = h->next;
		h->used = 0;
		h->next = t->state->free;
		t->state->free = i;
		return 0;
	}
	return -2;
}

/* An unused entry: new, deleted, or given up by an LRU table. */
static inline __u32 onpath_unused(const struct onpath_table *t)
{
	__u32 i = t->state->free;

	if (i) {
		t->state->free = ((struct onpath_entry *)onpath_entry_at(t, i))->next;
		return i;
	}
	if (t->state->count < t->max)
		return ++t->state->count;
	if (t->kind != ONPATH_KIND_LRU_HASH)
		return 0;
	for (;;) {
		struct onpath_entry *h;

		t->state->hand = t->state->hand % t->max + 1;
		h = (struct onpath_entry *)onpath_entry_at(t, t->state->hand);
		if (h->used == 1) {
			bpf_map_delete_elem(t, (__u8 *)h + t->key_at);
			i = t->state->free;
			t->state->free = h->next;
			return i;
		}
		h->used = 1;
	}
}

/* flags: 0, 1: only if there is none (BPF_NOEXIST), 2: only if there is one. */
static inline int bpf_map_update_elem(const struct onpath_table *t, const void *key, const void *value, __u64 flags)
{
	void *there = bpf_map_lookup_elem(t, key);
	struct onpath_entry *h;
	__u32 *head, i;
	__u8 *e;

	if (there) {
		if (flags == 1)
			return -17;
		onpath_copy(there, value, t->value_size);
		return 0;
	}
	if (t->kind == ONPATH_KIND_ARRAY || flags == 2)
		return t->kind == ONPATH_KIND_ARRAY ? -7 : -2;
	i = onpath_unused(t);
	if (!i)
		return -7;
	e = onpath_entry_at(t, i);
	h = (struct onpath_entry *)e;
	onpath_copy(e + t->key_at, key, t->key_size);
	onpath_copy(e + t->value_at, value, t->value_size);
	head = onpath_head(t, key);
	h->used = 2;
	h->next = *head;
	*head = i;
	return 0;
}

static inline __u32 bpf_get_smp_processor_id(void)
{
	return 0;
}
#endif
