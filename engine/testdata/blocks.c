/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Does with the blocks fetch/1, blob/1, body/1 and notify/1 what the path of a request says. */
#define ONPATH_BUFFER 16384
#include "onpath.h"

ONPATH_COUNTERS({ __u64 got; __u64 refused; __u64 failed; __u64 sent; __u64 ends; __u64 pieces; });

static int relay_from, relay_to, piped, sink, drains;
static __u8 held[16384];
static __u32 holds;
static __u64 length;
static __u32 filled;

static int is(const __u8 *s, __u32 n, const char *word)
{
	__u32 i = 0;

	for (; word[i]; i++)
		if (i >= n || s[i] != (__u8)word[i])
			return 0;
	return 1;
}

static __u32 url_of(__u8 *to)
{
	return onpath_config_get("url", 3, to, 256);
}

static void number(__u64 v, __u8 *to, __u32 *n)
{
	__u8 b[20];
	__u32 k = 0;

	do b[k++] = '0' + v % 10;
	while (v /= 10);
	while (k)
		to[(*n)++] = b[--k];
}

static void say(__u64 v)
{
	__u8 b[24];
	__u32 n = 0;

	number(v, b, &n);
	onpath_respond(200, "text/plain", 10, b, n);
}

static __u64 many(__u32 n)
{
	__u8 url[256];
	__u32 len = url_of(url), ok = 0;

	while (n--)
		if (onpath_fetch((char *)url, len, "", 0) > 0)
			ok++;
		else
			onpath_count(refused, 1);
	return ok;
}

ONPATH_REQUEST(r)
{
	const __u8 *path = r->data + r->method;
	__u32 n = r->path;
	__u8 url[256];

	if (is(path, n, "/relay")) { /* the origin's answer, piece by piece */
		relay_to = onpath_keep();
		relay_from = onpath_fetch((char *)url, url_of(url), "X-Told: yes\nHost: other\n", 24);
	} else if (is(path, n, "/many")) {
		say(many(200));
	} else if (is(path, n, "/drain")) { /* and reads all of them, for ever */
		drains = 1;
		say(many(16));
	} else if (is(path, n, "/elsewhere")) {
		say((__u64)-onpath_fetch("http://169.254.169.254/latest", 29, "", 0));
	} else if (is(path, n, "/upload")) { /* how long the body is */
		sink = onpath_keep();
		length = r->body == ONPATH_LONG ? 0 : r->body;
		onpath_read(sink);
	} else if (is(path, n, "/store")) {
		piped = onpath_fetch((char *)url, url_of(url), "", 0);
		relay_to = onpath_keep();
	} else if (is(path, n, "/blob")) { /* what is stored, from the fifth byte on */
		int k = onpath_keep();

		onpath_begin(k, 200, "Content-Type: text/plain\n", 25);
		if (onpath_write_blob(k, "b", 1, 5, 0) < 0)
			onpath_write(k, "none", 4);
		onpath_end(k);
	} else if (is(path, n, "/fill")) { /* writes sixteen blobs, as far as it may */
		__u32 wrote = 0;

		for (__u32 i = 0; i < 16; i++, filled++) {
			__u8 key[4] = { 'f', filled % 100, 0, 0 };

			if (onpath_blob_create(key, 4, "", 0) || onpath_blob_add(key, 4, held, sizeof held) || onpath_blob_whole(key, 4))
				break;
			wrote++;
		}
		say(wrote);
	} else if (is(path, n, "/flood")) { /* an answer that never ends */
		relay_to = onpath_keep();
		onpath_begin(relay_to, 200, "", 0);
		while (!onpath_write(relay_to, held, sizeof held))
			onpath_count(got, 1);
		onpath_count(refused, 1);
	} else if (is(path, n, "/silent")) {
		onpath_keep();
	} else if (is(path, n, "/notify")) {
		__u32 ok = 0;

		for (__u32 i = 0; i < 50; i++)
			ok += onpath_notify(1, "crowd", 5, "many came", 9) == 0;
		say(ok);
	} else if (is(path, n, "/keep")) {
		say(onpath_keep() > 0);
	}
}

static void pass(void)
{
	if (!holds || onpath_write(relay_to, held, holds) == 0) {
		holds = 0;
		onpath_fetch_read(relay_from);
	} else {
		onpath_count(refused, 1);
	}
}

ONPATH_EVENT(e)
{
	if (e->what == ONPATH_FAILED)
		onpath_count(failed, 1);
	if (e->what == ONPATH_END)
		onpath_count(ends, 1);
	if (e->what == ONPATH_SENT)
		onpath_count(sent, 1);
	if (e->what == ONPATH_PIECE)
		onpath_count(pieces, 1);
	if (drains)
		onpath_fetch_read(e->stream);
	if (e->stream == relay_from && relay_from > 0) {
		if (e->what == ONPATH_HEAD) {
			onpath_begin(relay_to, e->status, (char *)e->data, e->length);
			onpath_fetch_read(relay_from);
		} else if (e->what == ONPATH_PIECE) {
			holds = e->length;
			__builtin_memcpy(held, e->data, holds);
			pass();
		} else if (e->what == ONPATH_FAILED) {
			onpath_cancel(relay_to);
		} else {
			onpath_end(relay_to);
		}
	} else if (e->stream == relay_to && e->what == ONPATH_ROOM) {
		if (relay_from > 0)
			pass();
	} else if (e->stream == piped && piped > 0) {
		if (e->what == ONPATH_HEAD) {
			onpath_fetch_store(piped, "b", 1, (char *)e->data, e->length > 1000 ? 1000 : e->length);
			onpath_begin(relay_to, 200, "", 0);
			onpath_write_blob(relay_to, "b", 1, 0, 0); /* while it comes */
			onpath_end(relay_to);
		}
	} else if (e->stream == sink && sink > 0) {
		if (e->what == ONPATH_PIECE) {
			length += e->length;
			onpath_read(sink);
		} else if (e->what == ONPATH_END) {
			__u8 b[24];
			__u32 n = 0;

			number(length, b, &n);
			onpath_begin(sink, 200, "", 0);
			onpath_write(sink, b, n);
			onpath_end(sink);
		}
	}
}
