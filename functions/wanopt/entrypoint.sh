#!/bin/sh
# A half of a WAN optimiser: takes TCP connections over, which its partner opens.
set -eu
if [ ! -e /run/onpath/pair.json ]; then
	echo 'wanopt: it has no partner: name it in a chain with pair: true, at two cloudlets' >&2
	exit 2
fi
ports=${PORTS:-1-65535}

# Packets of taken-over connections, both sides, are for this machine's own sockets; others
# go over the stretch.
partner() { for a in ${ONPATH_PAIR_PARTNER:-}; do case $a in *:*) [ "$1" = -6 ] && echo "$a" ;; *) [ "$1" = -4 ] && echo "$a" ;; esac; done | head -n 1; }
for f in -4 -6; do
	ip $f rule add pref 10 fwmark 1 lookup 100 2>/dev/null || continue # without IPv6
	ip $f route replace local default dev lo table 100
	ip $f rule add pref 11 iif eth0 lookup 101
	ip $f route replace default via "$(partner $f)" dev pair0 onlink table 101 || true
done
ip link set lo up
nft -f - <<NFT
table inet wanopt
delete table inet wanopt
table inet wanopt {
	chain prerouting {
		type filter hook prerouting priority mangle;
		iifname != "eth0" accept
		tcp flags & (syn | ack | rst) != syn socket transparent 1 meta mark set 1 accept
		meta nfproto ipv4 tcp dport { $ports } tproxy ip to :7171 meta mark set 1 accept
		meta nfproto ipv6 tcp dport { $ports } tproxy ip6 to :7171 meta mark set 1 accept
	}
}
NFT
exec /usr/local/bin/onpath wanopt --memory "${MEMORY:-64}"
