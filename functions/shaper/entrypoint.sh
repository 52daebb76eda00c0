#!/bin/sh
# Limits the rate with HTB. Routed: one device carries both directions, told
# apart by CLIENTS. Bridged (eth1 exists): each device's egress is a direction.
set -eu
rate=${RATE:-50mbit}
up=${UP:-$rate}
down=${DOWN:-$rate}
burst=${BURST:-32k}
queue=${QUEUE:-200} # packets that may wait, per direction

# What a run before this one left in the namespace cannot be changed into the same.
for d in eth0 eth1; do tc qdisc del dev $d root 2>/dev/null || true; done

class() { # device, minor number, rate
	tc class replace dev "$1" parent 1: classid "1:$2" htb rate "$3" ceil "$3" burst "$burst" cburst "$burst"
	tc qdisc replace dev "$1" parent "1:$2" handle "$2:" pfifo limit "$queue"
}

if [ -e /sys/class/net/eth1 ]; then
	ip link add br0 type bridge stp_state 0 mcast_snooping 0 forward_delay 0 2>/dev/null || true
	for d in eth0 eth1; do ip link set "$d" master br0 up; done
	ip link set br0 up
	tc qdisc replace dev eth1 root handle 1: htb default 10 # towards the chain's end
	class eth1 10 "$up"
	tc qdisc replace dev eth0 root handle 1: htb default 20
	class eth0 20 "$down"
	echo "shaper: bridged, up $up, down $down"
else
	# Without CLIENTS both directions share class 1:10.
	tc qdisc replace dev eth0 root handle 1: htb default 10
	class eth0 10 "$up"
	class eth0 20 "$down"
	{
		echo 'table inet shaper'
		echo 'delete table inet shaper'
		echo 'table inet shaper {'
		echo '	chain forward {'
		echo '		type filter hook forward priority filter;'
		for c in $(echo "${CLIENTS:-}" | tr ',' ' '); do
			case $c in *:*) f=ip6 ;; *) f=ip ;; esac
			# HTB takes the packet's priority as its class.
			echo "		$f saddr $c meta priority set 1:10"
			echo "		$f daddr $c meta priority set 1:20"
		done
		echo '	}'
		echo '}'
	} | nft -f -
	echo "shaper: routed, up $up, down $down, clients ${CLIENTS:-not told apart}"
fi
touch /run/ready

trap 'exit 0' TERM INT
while :; do
	sleep 86400 &
	wait $! || true
done
