/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The limits: the least that a program on XDP and on tc can do to forward a
 * frame. They know one next hop and look nothing up.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

/* Set before loading. */
volatile const __u32 out_ifindex;
volatile const __u8 macs[12]; /* destination, source */

SEC("xdp")
int limit_xdp(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	int i;

	if (data + 14 > end)
		return XDP_DROP;
	if (data[12] != 8)
		return XDP_PASS; /* ARP and the like */
#pragma unroll
	for (i = 0; i < 12; i++)
		data[i] = macs[i];
	return bpf_redirect(out_ifindex, 0);
}

SEC("tc")
int limit_tc(struct __sk_buff *skb)
{
	__u8 *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	int i;

	if (data + 14 > end)
		return TC_ACT_SHOT;
	if (data[12] != 8)
		return TC_ACT_OK;
#pragma unroll
	for (i = 0; i < 12; i++)
		data[i] = macs[i];
	return bpf_redirect(out_ifindex, 0);
}

char _license[] SEC("license") = "GPL";
