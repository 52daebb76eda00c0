#!/bin/sh
# Unbound, answering at all addresses of the instance.
set -eu
conf=/etc/onpath/unbound.conf
mkdir -p /etc/onpath /run/unbound
if [ ! -e "$conf" ]; then
	{
		echo 'server:'
		echo '	interface: 0.0.0.0'
		echo '	interface: ::0'
		echo '	interface-automatic: yes' # answers come from the address that was asked
		echo '	username: unbound'
		echo '	chroot: ""'
		echo '	directory: /etc/unbound'
		echo '	pidfile: /run/unbound/unbound.pid'
		echo '	use-syslog: no'
		echo '	logfile: ""'
		echo '	do-daemonize: no'
		echo '	num-threads: 1'
		echo "	msg-cache-size: ${CACHE:-16}m"
		echo "	rrset-cache-size: $((2 * ${CACHE:-16}))m"
		echo '	prefetch: yes'
		echo '	minimal-responses: yes'
		echo '	hide-identity: yes'
		echo '	hide-version: yes'
		if [ "${VALIDATE:-true}" = true ]; then
			echo '	module-config: "validator iterator"'
			echo '	trust-anchor-file: /usr/share/dns/root.key'
		else
			echo '	module-config: "iterator"'
		fi
		for a in $(echo "${ALLOW:-}" | tr ',' ' '); do
			echo "	access-control: $a allow"
		done
		for n in $(echo "${BLOCK:-}" | tr ',' ' '); do
			echo "	local-zone: \"$n\" always_nxdomain"
		done
		for r in $(echo "${LOCAL:-}" | tr ',' ' '); do
			name=${r%%=*} address=${r#*=}
			case $address in *:*) type=AAAA ;; *) type=A ;; esac
			echo "	local-zone: \"$name\" transparent"
			echo "	local-data: \"$name 60 IN $type $address\""
		done
		echo 'remote-control:'
		echo '	control-enable: yes'
		echo '	control-interface: /run/unbound/control'
		echo '	control-use-cert: no'
		if [ -n "${FORWARD:-}" ]; then
			echo 'forward-zone:'
			echo '	name: "."'
			for a in $(echo "$FORWARD" | tr ',' ' '); do
				echo "	forward-addr: $a"
			done
		fi
	} > "$conf"
fi
unbound-checkconf "$conf" > /dev/null
exec unbound -d -c "$conf"
