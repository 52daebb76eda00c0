#!/bin/sh
# WireGuard's counters in Prometheus' text format.
wg show wg0 transfer | while read -r peer received sent; do
	echo "wireguard_received_bytes_total{peer=\"$peer\"} $received"
	echo "wireguard_sent_bytes_total{peer=\"$peer\"} $sent"
done
wg show wg0 latest-handshakes | while read -r peer at; do
	echo "wireguard_latest_handshake_seconds{peer=\"$peer\"} $at"
done
