#!/bin/sh
# Unbound's counters in Prometheus' text format.
unbound-control -c /etc/onpath/unbound.conf stats_noreset | awk -F= '
	/^total\.num\./ { gsub(/^total\.num\./, "", $1); name = "unbound_" $1 "_total" }
	/^total\.recursion\.time\.avg=/ { name = "unbound_recursion_time_seconds" }
	name { gsub(/[^a-zA-Z0-9_]/, "_", name); print name, $2; name = "" }'
