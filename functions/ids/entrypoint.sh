#!/bin/sh
# Suricata, listening to the copies that a mirror element gets, or (MODE=inline)
# deciding on every forwarded packet.
set -eu
mode=${MODE:-listen}
logs=/var/log/suricata
rules=${RULES:-/etc/onpath/ids.rules}
mkdir -p "$logs" /run/suricata /etc/onpath

if [ ! -e "$rules" ]; then
	echo 'alert http any any -> any any (msg:"onpath: administrator page requested"; http.uri; content:"/admin"; classtype:web-application-attack; sid:1000001; rev:1;)' > "$rules"
fi
more=
if [ "${RULESET:-own}" = debian ]; then
	more=', "/etc/suricata/rules/*.rules"'
fi
conf=/etc/onpath/suricata.yaml
if [ ! -e "$conf" ]; then
	cat > "$conf" <<CONF
%YAML 1.1
---
vars:
  address-groups: {HOME_NET: "${HOME_NET:-any}", EXTERNAL_NET: any}
  port-groups: {HTTP_PORTS: "${HTTP_PORTS:-80}"}
default-log-dir: $logs
default-rule-path: /etc/onpath
rule-files: [$rules$more]
classification-file: /etc/suricata/classification.config
reference-config-file: /etc/suricata/reference.config
stats: {enabled: yes, interval: 10}
outputs:
  - fast: {enabled: yes, filename: fast.log, append: yes}
  - eve-log:
      enabled: yes
      filetype: regular
      filename: eve.json
      types: [{alert: {}}, {drop: {alerts: yes, flows: all}}, {stats: {threads: no, deltas: no}}]
logging:
  default-log-level: notice
  outputs:
    - console: {enabled: yes}
    - file: {enabled: yes, level: notice, filename: suricata.log}
af-packet:
  - interface: eth0
    threads: 1
    cluster-id: 99
    cluster-type: cluster_flow
    defrag: yes
    tpacket-v3: yes
    block-size: 131072
    ring-size: 2048
    use-mmap: yes
nfq: {mode: accept, fail-open: no}
app-layer:
  protocols:
    http: {enabled: yes}
    tls: {enabled: yes, detection-ports: {dp: 443}}
    dns:
      tcp: {enabled: yes, detection-ports: {dp: 53}}
      udp: {enabled: yes, detection-ports: {dp: 53}}
flow: {memcap: ${FLOW_MEMORY:-32mb}, hash-size: 16384, prealloc: 1000}
stream:
  memcap: ${STREAM_MEMORY:-32mb}
  # Senders leave check sums to devices that a veth does not have.
  checksum-validation: no
  inline: auto
  midstream: true
  reassembly: {memcap: ${STREAM_MEMORY:-32mb}, depth: 1mb}
host: {memcap: 4mb, hash-size: 1024, prealloc: 100}
defrag: {memcap: 4mb, hash-size: 1024, trackers: 1024, max-frags: 4096, prealloc: yes, timeout: 60}
detect: {profile: low, sgh-mpm-context: auto}
mpm-algo: ac
runmode: workers
unix-command: {enabled: no}
CONF
fi

set -- suricata -c "$conf" -k none --runmode workers --pidfile /run/suricata/suricata.pid
if [ "$mode" = inline ]; then
	iptables-nft -w -D FORWARD -j NFQUEUE --queue-num 0 2>/dev/null || true
	iptables-nft -w -A FORWARD -j NFQUEUE --queue-num 0
	ip6tables-nft -w -D FORWARD -j NFQUEUE --queue-num 0 2>/dev/null || true
	ip6tables-nft -w -A FORWARD -j NFQUEUE --queue-num 0
	set -- "$@" -q 0
else
	set -- "$@" --af-packet=eth0
fi
rm -f /run/suricata/suricata.pid "$logs/suricata.log"
: >> "$logs/fast.log"
tail -n 0 -F "$logs/fast.log" 2>/dev/null &
: >> "$logs/eve.json"
notify "$logs/eve.json" &
"$@" &
suricata=$!
( # ready once packets are looked at, not when the process exists
	until grep -qs 'Engine started' "$logs/suricata.log"; do sleep 0.1; done
	touch /run/ready
) &
trap 'kill -TERM $suricata 2>/dev/null || true' TERM INT
trap 'kill -USR2 $suricata 2>/dev/null || true' HUP
# Logs are kept small; alerts also go to the instance's log.
while kill -0 $suricata 2>/dev/null; do
	for f in eve.json fast.log; do
		if [ "$(stat -c %s "$logs/$f" 2>/dev/null || echo 0)" -gt 33554432 ]; then
			mv "$logs/$f" "$logs/$f.1"
			kill -HUP $suricata
		fi
	done
	sleep 5 &
	wait $! || true
done
wait $suricata
