#!/bin/sh
# Rewrites destination addresses: what clients dial becomes where the servers
# are; replies are turned back by connection tracking.
set -eu
if [ -z "${MAP:-}" ]; then
	echo 'nat: MAP is not set: MAP=DIALLED=SERVER,… is what to rewrite' >&2
	exit 2
fi
{
	echo 'table inet nat'
	echo 'delete table inet nat'
	echo 'table inet nat {'
	echo '	chain prerouting {'
	echo '		type nat hook prerouting priority dstnat;'
	for m in $(echo "$MAP" | tr ',' ' '); do
		from=${m%%=*} to=${m#*=}
		case $from in *:*) f=ip6 ;; *) f=ip ;; esac
		echo "		$f daddr $from counter dnat $f to $to"
	done
	echo '	}'
	echo '}'
} | nft -f -
echo "nat: rewrites $MAP"
touch /run/ready

trap 'exit 0' TERM INT
while :; do
	sleep 86400 &
	wait $! || true
done
