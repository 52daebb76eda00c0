#!/bin/sh
# Loads the rules and stays; SIGHUP loads them anew without a gap.
set -eu
rules=${RULES:-/etc/onpath/firewall.nft}

if [ ! -e "$rules" ]; then
	# No file given: rules from the environment.
	mkdir -p "$(dirname "$rules")"
	{
		echo 'table inet firewall {'
		echo '	counter blocked-ports { }'
		echo '	counter blocked-hosts { }'
		echo '	counter passed { }'
		echo '	chain forward {'
		echo '		type filter hook forward priority filter; policy accept;'
		for h in $(echo "${BLOCK_HOSTS:-}" | tr ',' ' '); do
			case $h in *:*) f=ip6 ;; *) f=ip ;; esac
			echo "		$f daddr $h counter name blocked-hosts drop"
			echo "		$f saddr $h counter name blocked-hosts drop"
		done
		if [ -n "${BLOCK_PORTS:-}" ]; then
			echo "		meta l4proto { tcp, udp } th dport { $BLOCK_PORTS } counter name blocked-ports drop"
		fi
		echo '		counter name passed'
		echo '	}'
		echo '}'
	} > "$rules"
fi

load() {
	# One transaction: the old rules hold until the new ones do.
	{
		echo 'table inet firewall'
		echo 'delete table inet firewall'
		cat "$rules"
	} | nft -f - || return 1 # set -e does not hold within "load || …"
	echo "firewall: rules of $rules are loaded"
}

load
touch /run/ready
trap 'load || echo "firewall: the old rules stay" >&2' HUP
trap 'exit 0' TERM INT
while :; do
	sleep 86400 &
	wait $! || true
done
