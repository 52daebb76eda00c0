#!/bin/sh
# HAProxy on port 80, in front of the servers of BACKENDS.
set -eu
conf=/etc/onpath/haproxy.cfg
mkdir -p /etc/onpath
if [ ! -e "$conf" ]; then
	if [ -z "${BACKENDS:-}" ]; then
		echo 'haproxy: BACKENDS is not set: BACKENDS=ADDRESS:PORT,… are the servers' >&2
		exit 2
	fi
	{
		echo 'global'
		echo '	log stdout format raw local0 notice'
		echo "	maxconn ${CONNECTIONS:-4000}"
		echo '	stats socket /run/haproxy.sock mode 600 level admin'
		echo 'defaults'
		echo "	mode ${MODE:-http}"
		echo '	log global'
		echo '	timeout connect 5s'
		echo '	timeout client 60s'
		echo '	timeout server 60s'
		echo '	option redispatch'
		echo '	retries 3'
		echo 'frontend metrics'
		echo '	mode http'
		echo '	bind 127.0.0.1:8405'
		echo '	http-request use-service prometheus-exporter if { path /metrics }'
		echo 'frontend clients'
		echo '	bind :::80 v4v6'
		if [ "${MODE:-http}" = http ]; then
			echo '	option forwardfor'
		fi
		echo '	default_backend servers'
		echo 'backend servers'
		echo "	balance ${BALANCE:-roundrobin}"
		if [ -n "${CHECK_PATH:-}" ] && [ "${MODE:-http}" = http ]; then
			echo "	option httpchk GET $CHECK_PATH"
		fi
		n=0
		for b in $(echo "$BACKENDS" | tr ',' ' '); do
			n=$((n + 1))
			echo "	server s$n $b check inter ${EVERY:-1s} fall 3 rise 2"
		done
	} > "$conf"
fi
exec haproxy -W -f "$conf"
