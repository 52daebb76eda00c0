#!/bin/sh
# Squid as a transparent cache: it takes web connections over and opens its own
# to the origin with the client's address, or with this container's.
set -eu
ports=${PORTS:-80}
memory=${MEMORY:-64}        # MB of cache
object=${MAX_OBJECT:-32}    # MB of the largest object kept
case ${SOURCE:-client} in
client) spoof=allow ;;
own) spoof=deny ;;
*)
	echo "cache: SOURCE is client or own, not $SOURCE" >&2
	exit 2
	;;
esac
case ${REFRESH:-} in
*[!0-9%\ ]*)
	echo "cache: REFRESH is minutes, a percentage and minutes, such as 60 50% 1440, not $REFRESH" >&2
	exit 2
	;;
esac
log=/var/log/squid/access.log

# Packets of taken-over connections, both sides, are for this machine's own sockets.
for f in -4 -6; do
	ip $f rule del fwmark 1 lookup 100 2>/dev/null || true
	ip $f rule add fwmark 1 lookup 100 2>/dev/null || continue
	ip $f route replace local default dev lo table 100
done
ip link set lo up
nft -f - <<NFT
table inet cache
delete table inet cache
table inet cache {
	chain prerouting {
		type filter hook prerouting priority mangle;
		iif lo accept
		# A SYN is for the listener even where the ports belonged to a connection
		# that is over (TIME_WAIT): only tproxy begins anew there.
		tcp flags & (syn | ack | rst) != syn socket transparent 1 meta mark set 1 accept
		meta nfproto ipv4 tcp dport { $ports } tproxy ip to :3129 meta mark set 1 accept
		meta nfproto ipv6 tcp dport { $ports } tproxy ip6 to :3129 meta mark set 1 accept
	}
}
NFT

mkdir -p /run/squid /var/log/squid /etc/onpath
chown proxy:proxy /run/squid /var/log/squid
conf=/etc/onpath/squid.conf
if [ ! -e "$conf" ]; then
	cat > "$conf" <<CONF
# Squid wants a port of its own, for nobody.
http_port 127.0.0.1:3128
http_port 3129 tproxy
spoof_client_ip $spoof all
visible_hostname ${HOSTNAME:-cache}
# Its reports name the clients and what they asked for: a request with this
# host's name and port would be given them.
http_access deny manager
http_access allow all
cache_mem $memory MB
maximum_object_size_in_memory $object MB
maximum_object_size $object MB
memory_replacement_policy heap LFUDA
${REFRESH:+refresh_pattern . $REFRESH}
# What a server sends ahead of a slow client. With the default, 16 KB, squid 5 at
# times forgets to read on and a download stands still.
read_ahead_gap 256 KB
# Names are looked up here first: the host a request names must be the one it
# was sent to, or the answer is not kept.
hosts_file /etc/hosts
dns_timeout 2 seconds
connect_timeout 10 seconds
shutdown_lifetime 1 second
client_persistent_connections on
server_persistent_connections on
pid_filename /run/squid/squid.pid
cache_log /var/log/squid/cache.log
# Probes open a connection and send no request.
acl asked has request
access_log stdio:$log asked
logfile_rotate 1
pinger_enable off
via off
forwarded_for transparent
coredump_dir /var/spool/squid
CONF
fi

: > "$log"
chown proxy:proxy "$log"
tail -n 0 -F "$log" 2>/dev/null &

squid -N -f "$conf" &
squid=$!
trap 'kill -TERM $squid 2>/dev/null || true' TERM INT
# The access log is kept small; its lines also go to the instance's log.
while kill -0 $squid 2>/dev/null; do
	if [ "$(stat -c %s "$log" 2>/dev/null || echo 0)" -gt 33554432 ]; then
		squid -f "$conf" -k rotate || true
	fi
	sleep 5 &
	wait $! || true
	kill -0 $squid 2>/dev/null || break
done
wait $squid
