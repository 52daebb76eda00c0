#!/bin/sh
# A WireGuard server: the kernel's where it has one, else WireGuard's Go program. What clients
# send through it leaves with the instance's own address.
set -eu
key=/run/secrets/wireguard.key
if [ ! -s "$key" ]; then
	echo "vpn: $key is empty: the Secret vpn has the server's key" >&2
	exit 2
fi
go=
if ! ip link add wg0 type wireguard 2>/dev/null; then
	wireguard-go -f wg0 > /dev/null &
	go=$!
	until [ -S /run/wireguard/wg0.sock ]; do
		kill -0 $go # its end is ours
		sleep 0.05
	done
fi
wg set wg0 listen-port 51820 private-key "$key"
for p in $(echo "${PEERS:-}" | tr ',' ' '); do
	wg set wg0 peer "${p%=*}" allowed-ips "$(echo "${p##*=}" | tr '+' ',')"
done
ip link set wg0 mtu "${MTU:-1380}" up
for a in $(echo "${NETWORKS:-10.77.0.0/24,fd77::/64}" | tr ',' ' '); do
	ip route replace "$a" dev wg0 # clients have addresses, the server needs none
done
nft -f - <<NFT
table inet vpn
delete table inet vpn
table inet vpn {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		iifname wg0 oifname eth0 masquerade
	}
	chain forward {
		type filter hook forward priority filter;
		tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
	}
}
NFT
echo "vpn: the public key is $(wg show wg0 public-key)"
touch /run/ready
trap 'exit 0' TERM INT
if [ -n "$go" ]; then
	wait $go
else
	while :; do
		sleep 86400 &
		wait $! || true
	done
fi
