/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Answers every request with a greeting. */
#include "onpath.h"

ONPATH_LICENSE("Dual BSD/GPL");

ONPATH_REQUEST(r)
{
	static const char text[] = "hello from the nearest cloudlet\n";

	(void)r;
	onpath_respond(200, "text/plain", 10, text, sizeof(text) - 1);
}
