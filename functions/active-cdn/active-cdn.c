/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A content network's edge (NetServ §4.1, §7): answers GET and HEAD for an origin. What it
 * has not, it fetches once, however many clients wait, and sends and stores it at the same
 * time. What may not be stored is handed on; a live stream is fetched once for all who
 * watch. Who reads slowly waits alone. wasm only.
 */
#define ONPATH_BUFFER 20480
#include "onpath.h"

ONPATH_COUNTERS({
	__u64 requests;
	__u64 hits;     /* answered from the disk, or from what is being stored */
	__u64 fetches;
	__u64 stored;   /* fetches that went to the disk */
	__u64 watchers; /* who came to a live stream that was there */
	__u64 slow;     /* cut off a live stream, which they did not keep up with */
	__u64 failed;
});

#define JOBS 64
#define WAITERS 256
#define PATH 1024
#define KEY 240       /* of what is stored */
#define LINES 700     /* of a header that is handed on */
#define PIECE 16384
#define SHARED 49152  /* a body that all who wait get at once, though it may not be stored */
#define PATIENCE 5    /* ticks that a live stream waits for one who is behind */
#define KEEP 300      /* seconds, where nobody says how long */

enum { FREE = 0, ASKED, STORED, HANDED, LIVE };

struct waiter {
	int stream; /* 0: free */
	int job;    /* 1 and more; 0: none */
	__u8 head;
	__u8 overlay;
	__u8 owed; /* the piece at hand */
	__u16 range_length, match_length, if_length;
	char range[64], match[128], if_range[128];
};

struct job {
	int fetch;
	__u32 state;
	__u32 path_length;
	__u32 lines_length;
	__u32 status;
	__u32 held;    /* bytes of the piece at hand */
	__u32 waited;  /* ticks */
	__u8 alone;    /* nobody else may join */
	__u8 over;     /* no more comes */
	__u8 path[PATH];
	__u8 lines[LINES];
	__u8 piece[PIECE];
};

/* What is stored with a file. */
struct about {
	__u64 until; /* ns since 1970 */
	__u64 total;
	__u32 etag_at, etag_length; /* in lines */
	__u32 text;                 /* 1: its type is text */
	__u32 length;
	__u8 lines[LINES];
};

static struct waiter waiters[WAITERS];
static struct job jobs[JOBS];
static struct about about;
static __u8 out[4096];
static __u32 n;

static __u8 low(__u8 c)
{
	return c >= 'A' && c <= 'Z' ? c | 0x20 : c;
}

static int same(const void *a, __u32 la, const void *b, __u32 lb)
{
	const __u8 *x = a, *y = b;

	if (la != lb)
		return 0;
	for (__u32 i = 0; i < la; i++)
		if (x[i] != y[i])
			return 0;
	return 1;
}

static int begins(const __u8 *s, __u32 len, const char *word)
{
	for (__u32 i = 0; word[i]; i++)
		if (i >= len || low(s[i]) != (__u8)word[i])
			return 0;
	return 1;
}

static int has(const __u8 *s, __u32 len, const char *word)
{
	for (__u32 i = 0; i < len; i++)
		if (begins(s + i, len - i, word))
			return 1;
	return 0;
}

static void put(const void *s, __u32 len)
{
	if (n + len > sizeof out)
		return;
	__builtin_memcpy(out + n, s, len);
	n += len;
}

static void puts(const char *s)
{
	__u32 len = 0;

	while (s[len])
		len++;
	put(s, len);
}

static void putn(__u64 v)
{
	__u8 b[20];
	__u32 k = sizeof b;

	do
		b[--k] = '0' + v % 10;
	while (v /= 10);
	put(b + k, sizeof b - k);
}

/* Digits at s; how many in *used. */
static __u64 digits(const __u8 *s, __u32 len, __u32 *used)
{
	__u64 v = 0;
	__u32 i = 0;

	for (; i < len && i < 18 && s[i] >= '0' && s[i] <= '9'; i++)
		v = v * 10 + (s[i] - '0');
	*used = i;
	return v;
}

/* The value of a line of a header; its length, or -1. */
static int line(const __u8 *h, __u32 len, const char *name, const __u8 **value)
{
	for (__u32 i = 0; i < len;) {
		__u32 e = i, c;

		while (e < len && h[e] != '\n')
			e++;
		if (begins(h + i, e - i, name)) {
			for (c = 0; name[c]; c++)
				;
			for (c += i; c < e && h[c] == ' '; c++)
				;
			*value = h + c;
			return e - c;
		}
		i = e + 1;
	}
	return -1;
}

static __u32 setting(const char *name, __u32 len, void *to, __u32 room)
{
	int got = onpath_config_get(name, len, to, room);

	return got < 0 ? 0 : (__u32)got > room ? room : got;
}

static void plain(struct waiter *w, __u32 status, const char *text)
{
	n = 0;
	puts("Content-Type: text/plain\nCache-Control: no-store\n");
	if (status == 503)
		puts("Retry-After: 1\n");
	onpath_begin(w->stream, status, (char *)out, n);
	n = 0;
	puts(text);
	if (!w->head)
		onpath_write(w->stream, out, n);
	onpath_end(w->stream);
	w->job = 0;
}

/* The part that a Range asks for: 1, all of it: 0, none that there is: -1. */
static int range_of(struct waiter *w, __u64 total, __u64 *from, __u64 *size)
{
	const __u8 *s = (__u8 *)w->range;
	__u32 len = w->range_length, used;
	__u64 last;

	*from = 0;
	*size = total;
	if (!begins(s, len, "bytes=") || has(s, len, ","))
		return 0;
	s += 6;
	len -= 6;
	if (len > 1 && s[0] == '-') {
		last = digits(s + 1, len - 1, &used);
		if (used != len - 1)
			return 0;
		if (!last || !total)
			return -1;
		*size = last < total ? last : total;
		*from = total - *size;
		return 1;
	}
	*from = digits(s, len, &used);
	if (!used || used >= len || s[used] != '-') {
		*from = 0;
		return 0;
	}
	s += used + 1;
	len -= used + 1;
	last = len ? digits(s, len, &used) : total - 1;
	if (len && (used != len || last < *from)) {
		*from = 0;
		return 0;
	}
	if (*from >= total)
		return -1;
	*size = (last < total ? last : total - 1) - *from + 1;
	return 1;
}

/* Answers from the disk; about has the words about the file. */
static void from_disk(struct waiter *w, const __u8 *key, __u32 len)
{
	const __u8 *etag = about.lines + about.etag_at;
	__u8 words[512];
	__u32 put_before = 0;
	__u64 from, size;
	int part;

	if (w->if_length && !same(w->if_range, w->if_length, etag, about.etag_length))
		w->range_length = 0;
	part = range_of(w, about.total, &from, &size);
	if (w->overlay && about.text) {
		put_before = setting("overlay", 7, words, sizeof words);
		part = from = 0;
		size = about.total;
	}
	n = 0;
	put(about.lines, about.length);
	puts("Accept-Ranges: bytes\n");
	if (w->match_length && same(w->match, w->match_length, etag, about.etag_length)) {
		onpath_begin(w->stream, 304, (char *)out, n);
		onpath_end(w->stream);
		return;
	}
	if (part < 0) {
		puts("Content-Range: bytes */");
		putn(about.total);
		puts("\nContent-Length: 0\n");
		onpath_begin(w->stream, 416, (char *)out, n);
		onpath_end(w->stream);
		return;
	}
	if (part) {
		puts("Content-Range: bytes ");
		putn(from);
		puts("-");
		putn(from + size - 1);
		puts("/");
		putn(about.total);
		puts("\n");
	}
	puts("Content-Length: ");
	putn(size + put_before);
	puts("\n");
	onpath_begin(w->stream, part ? 206 : 200, (char *)out, n);
	if (!w->head && put_before)
		onpath_write(w->stream, words, put_before);
	if (!w->head && size && onpath_write_blob(w->stream, key, len, from, size) < 0)
		onpath_cancel(w->stream), w->stream = 0; /* it went meanwhile */
	else
		onpath_end(w->stream);
}

static int found(const __u8 *key, __u32 len)
{
	struct onpath_blob b;

	if (len > KEY || onpath_blob_find(key, len, &b, &about, sizeof about) < 0 || about.length > LINES)
		return 0;
	if (b.whole && onpath_now() > about.until) {
		onpath_blob_delete(key, len);
		return 0;
	}
	return 1;
}

static void free_job(struct job *j)
{
	for (int i = 0; i < WAITERS; i++)
		if (waiters[i].job == j - jobs + 1)
			waiters[i].job = 0;
	j->state = FREE;
	j->fetch = 0;
}

static void begin(struct job *j, struct waiter *w)
{
	onpath_begin(w->stream, j->status, (char *)j->lines, j->lines_length);
	w->owed = 0;
	if (w->head) {
		onpath_end(w->stream);
		w->job = 0;
	}
}

/* A fetch for a waiter: one that is there, or a new one. */
static void fetch(struct waiter *w, const __u8 *path, __u32 len, int alone)
{
	struct job *j = 0;
	int got;

	for (int i = 0; i < JOBS; i++) {
		struct job *o = &jobs[i];

		if (o->state == FREE) {
			j = j ? j : o;
		} else if (!alone && !o->alone && (o->state == ASKED || (o->state == LIVE && !o->over)) &&
			   same(o->path, o->path_length, path, len)) {
			w->job = i + 1;
			if (o->state == LIVE) {
				onpath_count(watchers, 1);
				begin(o, w);
			}
			return;
		}
	}
	n = setting("origin", 6, out, 256);
	while (n && out[n - 1] == '/')
		n--;
	if (!n)
		return plain(w, 500, "active-cdn is not told its origin\n");
	put(path, len);
	got = j ? onpath_fetch((char *)out, n, "", 0) : -1;
	if (got == -1)
		return plain(w, 503, "too much is being fetched\n");
	if (got < 0)
		return plain(w, 502, "the origin may not be fetched from\n");
	onpath_count(fetches, 1);
	j->fetch = got;
	j->state = ASKED;
	j->held = j->waited = j->over = 0;
	j->alone = alone;
	j->path_length = len;
	__builtin_memcpy(j->path, path, len);
	w->job = j - jobs + 1;
}

static __u16 asked(const char *name, __u32 len, char *to, __u32 room)
{
	int got = onpath_header(name, len, to, room);

	return got < 0 || (__u32)got > room ? 0 : got;
}

ONPATH_REQUEST(r)
{
	const __u8 *method = r->data, *path = r->data + r->method;
	__u32 len = r->path;
	struct waiter *w = 0;
	int head = same(method, r->method, "HEAD", 4);

	onpath_count(requests, 1);
	if (!head && !same(method, r->method, "GET", 3)) {
		onpath_respond(405, "text/plain", 10, "only GET and HEAD are served here\n", 34);
		return;
	}
	if (len == 0 || path[0] != '/' || len > PATH) {
		onpath_respond(400, "text/plain", 10, "that path is not served here\n", 29);
		return;
	}
	for (int i = 0; i < WAITERS && !w; i++)
		if (!waiters[i].stream)
			w = &waiters[i];
	if (!w || (w->stream = onpath_keep()) < 0) {
		if (w)
			w->stream = 0;
		onpath_respond(503, "text/plain", 10, "too many are being served\n", 26);
		return;
	}
	w->job = w->owed = w->overlay = 0;
	w->head = head;
	w->range_length = asked("Range", 5, w->range, sizeof w->range);
	w->match_length = asked("If-None-Match", 13, w->match, sizeof w->match);
	w->if_length = asked("If-Range", 8, w->if_range, sizeof w->if_range);
	if (len > 10 && begins(path + len - 9, 9, "overlay=1") && (path[len - 10] == '?' || path[len - 10] == '&')) {
		w->overlay = 1;
		len -= 10;
	}
	if (found(path, len)) {
		onpath_count(hits, 1);
		from_disk(w, path, len);
		return;
	}
	fetch(w, path, len, 0);
}

/* Seconds that an answer may be kept; 0: not at all. */
static __u64 keeps(const __u8 *h, __u32 len)
{
	const __u8 *v;
	__u32 used;
	int l = line(h, len, "cache-control:", &v);

	if (line(h, len, "set-cookie:", &v) >= 0 || line(h, len, "vary: *", &v) >= 0)
		return 0;
	l = line(h, len, "cache-control:", &v);
	if (l > 0 && (has(v, l, "no-store") || has(v, l, "private") || has(v, l, "no-cache")))
		return 0;
	for (int i = 0; i + 8 < l; i++)
		if (begins(v + i, l - i, "max-age="))
			return digits(v + i + 8, l - i - 8, &used);
	l = setting("keep", 4, out, 16);
	return l ? digits(out, l, &used) : KEEP;
}

static const char *const handed[] = {
	"content-type:", "etag:", "last-modified:", "cache-control:", "content-encoding:", "content-language:",
	"content-disposition:", "expires:", "location:", "vary:", "access-control-allow-origin:", "retry-after:", "set-cookie:",
};

/* What of a header is handed on, in out. */
static void hand(const __u8 *h, __u32 len)
{
	n = 0;
	for (__u32 i = 0; i < len;) {
		__u32 e = i;

		while (e < len && h[e] != '\n')
			e++;
		for (__u32 k = 0; k < sizeof handed / sizeof *handed; k++)
			if (begins(h + i, e - i, handed[k]) && n + e - i + 1 <= LINES) {
				put(h + i, e - i);
				puts("\n");
			}
		i = e + 1;
	}
}

/* The rest of a fetch goes to the disk, and from there to all who wait. */
static int store(struct job *j, const __u8 *h, __u32 len, __u64 total, __u64 seconds)
{
	const __u8 *v;
	int l;

	hand(h, len);
	about.until = onpath_now() + (seconds > 86400 ? 86400 : seconds) * 1000000000ull;
	about.total = total;
	about.length = n;
	__builtin_memcpy(about.lines, out, n);
	l = line(about.lines, n, "etag:", &v);
	about.etag_at = l > 0 ? v - about.lines : 0;
	about.etag_length = l > 0 ? l : 0;
	l = line(about.lines, n, "content-type:", &v);
	about.text = l > 0 && begins(v, l, "text/");
	if (onpath_fetch_store(j->fetch, j->path, j->path_length, &about, sizeof about - LINES + about.length))
		return 0;
	onpath_count(stored, 1);
	j->state = STORED;
	for (int i = 0; i < WAITERS; i++)
		if (waiters[i].job == j - jobs + 1) {
			waiters[i].job = 0;
			from_disk(&waiters[i], j->path, j->path_length);
		}
	return 1;
}

static int is_live(struct job *j, const __u8 *type, int len)
{
	static __u8 prefix[128];
	__u32 l = setting("live", 4, prefix, sizeof prefix);

	if (l && l <= j->path_length && same(j->path, l, prefix, l))
		return 1;
	return len > 0 && (begins(type, len, "video/") || begins(type, len, "audio/") || begins(type, len, "text/event-stream") ||
			   begins(type, len, "multipart/x-mixed-replace"));
}

static void answered(struct job *j, struct onpath_event *e)
{
	const __u8 *v, *type;
	__u32 used;
	int l = line(e->data, e->length, "content-length:", &v), t;
	__u64 total = l > 0 ? digits(v, l, &used) : 0, seconds = keeps(e->data, e->length);
	int first = 1;

	if (e->status == 200 && l > 0 && seconds && !j->alone && j->path_length <= KEY && store(j, e->data, e->length, total, seconds))
		return;
	t = line(e->data, e->length, "content-type:", &type);
	j->state = e->status == 200 && l < 0 && is_live(j, type, t) ? LIVE : HANDED;
	j->status = e->status;
	hand(e->data, e->length);
	if (l >= 0) {
		puts("Content-Length: ");
		putn(total);
		puts("\n");
	}
	j->lines_length = n < LINES ? n : LINES;
	__builtin_memcpy(j->lines, out, j->lines_length);
	for (int i = 0; i < WAITERS; i++) {
		struct waiter *w = &waiters[i];

		if (w->job != j - jobs + 1)
			continue;
		if (first || w->head || j->state == LIVE || (l >= 0 && total <= SHARED))
			begin(j, w);
		else
			fetch(w, j->path, j->path_length, 1);
		first = first && w->head;
	}
	onpath_fetch_read(j->fetch);
}

/* Gives the piece at hand to who has not got it, and then asks for the next. */
static void pump(struct job *j)
{
	int owed = 0, some = 0;

	for (int i = 0; i < WAITERS; i++) {
		struct waiter *w = &waiters[i];

		if (w->job != j - jobs + 1)
			continue;
		some = 1;
		if (w->owed && onpath_write(w->stream, j->piece, j->held) == 0)
			w->owed = 0;
		owed |= w->owed;
	}
	if (!some) {
		if (!j->over)
			onpath_fetch_cancel(j->fetch);
		free_job(j);
	} else if (owed) {
		return;
	} else if (j->over) {
		for (int i = 0; i < WAITERS; i++)
			if (waiters[i].job == j - jobs + 1)
				onpath_end(waiters[i].stream);
		free_job(j);
	} else {
		j->waited = 0;
		onpath_fetch_read(j->fetch);
	}
}

static void of_fetch(struct job *j, struct onpath_event *e)
{
	int mine = j - jobs + 1;

	switch (e->what) {
	case ONPATH_HEAD:
		answered(j, e);
		return;
	case ONPATH_PIECE:
		j->held = e->length < PIECE ? e->length : PIECE;
		__builtin_memcpy(j->piece, e->data, j->held);
		for (int i = 0; i < WAITERS; i++)
			waiters[i].owed |= waiters[i].job == mine;
		pump(j);
		return;
	case ONPATH_END:
		j->over = 1;
		if (j->state == STORED)
			free_job(j);
		else
			pump(j);
		return;
	case ONPATH_FAILED:
		onpath_count(failed, 1);
		for (int i = 0; i < WAITERS; i++) {
			struct waiter *w = &waiters[i];

			if (w->job != mine)
				continue;
			if (j->state == ASKED) {
				plain(w, 502, "the origin does not answer\n");
			} else {
				onpath_cancel(w->stream);
				w->stream = 0;
			}
		}
		free_job(j);
	}
}

ONPATH_EVENT(e)
{
	for (int i = 0; i < JOBS; i++)
		if (jobs[i].state != FREE && jobs[i].fetch == e->stream)
			return of_fetch(&jobs[i], e);
	for (int i = 0; i < WAITERS; i++) {
		struct waiter *w = &waiters[i];
		int job = w->job;

		if (!w->stream || w->stream != e->stream)
			continue;
		if (e->what == ONPATH_SENT || e->what == ONPATH_FAILED)
			w->stream = w->job = w->owed = 0;
		if (job && jobs[job - 1].state >= HANDED)
			pump(&jobs[job - 1]);
		return;
	}
}

ONPATH_START
{
	onpath_every(100);
}

/* Who does not keep up with a live stream holds up the others for half a second at most. */
ONPATH_TIMER
{
	for (int i = 0; i < JOBS; i++) {
		int cut = 0;

		if (jobs[i].state != LIVE || !jobs[i].held)
			continue;
		for (int k = 0; k < WAITERS; k++) {
			struct waiter *w = &waiters[k];

			if (w->job != i + 1 || !w->owed)
				continue;
			cut = 1;
			if (jobs[i].waited < PATIENCE)
				continue;
			onpath_count(slow, 1);
			onpath_cancel(w->stream);
			w->stream = w->job = w->owed = 0;
		}
		jobs[i].waited = cut ? jobs[i].waited + 1 : 0;
		if (jobs[i].waited > PATIENCE)
			pump(&jobs[i]);
	}
}
