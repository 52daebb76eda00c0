#!/bin/sh
# Joins the two sides with a Linux bridge.
set -eu
ip link add br0 type bridge stp_state 0 mcast_snooping 0 forward_delay 0 2>/dev/null || true
for d in eth0 eth1; do ip link set "$d" master br0 up; done
ip link set br0 up
if [ -e "${RULES:=/etc/onpath/bridge.nft}" ]; then
	nft -f "$RULES"
fi
echo 'bridge: eth0 and eth1 are joined'
touch /run/ready

trap 'exit 0' TERM INT
while :; do
	sleep 86400 &
	wait $! || true
done
