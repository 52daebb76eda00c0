package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// ledger is every counter of lost packets: the kernel's of each host and
// device, the sockets' and the data paths'. Two of them say where packets were
// lost that a test misses.
type ledger map[string]uint64

func losses(ctx context.Context, t *testing.T) ledger {
	t.Helper()
	l := ledger{}
	for _, host := range append([]string{"client", "origin"}, nodes...) {
		out := run(ctx, t, host, "cat", "/proc/net/snmp", "/proc/net/softnet_stat", "/proc/net/dev")
		l.snmp(host, out)
		l.backlog(out)
		l.devices(host, out)
	}
	all, err := api(t).Counters(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	for node, c := range all.Nodes {
		l.datapath(node, c)
	}
	return l
}

// snmp adds what the kernel's protocols discarded.
func (l ledger) snmp(host, out string) {
	lines := strings.Split(out, "\n")
	for i := 0; i+1 < len(lines); i++ {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if len(names) < 2 || len(names) != len(values) || names[0] != values[0] || (names[0] != "Udp:" && names[0] != "Ip:") {
			continue
		}
		for k, n := range names {
			if strings.Contains(n, "Discards") || strings.Contains(n, "Errors") || strings.Contains(n, "NoRoutes") {
				v, _ := strconv.ParseUint(values[k], 10, 64)
				l[host+" "+names[0]+n] = v
			}
		}
	}
}

// overflown are packets that the kernel threw away because a CPU did not come to
// take them out of its queue of 1,000 (net.core.netdev_max_backlog).
const overflown = "machine: queues of CPUs overflowed"

// backlog adds what did not fit into the CPUs' queues: the second number of each.
func (l ledger) backlog(out string) {
	l[overflown] = 0
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) >= 9 && len(f[0]) == 8 && len(f[1]) == 8 {
			v, err := strconv.ParseUint(f[1], 16, 64)
			if err == nil {
				l[overflown] += v
			}
		}
	}
}

// devices adds what devices dropped: columns errs and drop of both directions.
func (l ledger) devices(host, out string) {
	for line := range strings.Lines(out) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		f := strings.Fields(rest)
		if !ok || len(f) != 16 || strings.Contains(name, " ") {
			continue
		}
		for column, what := range map[int]string{2: "rx errs", 3: "rx drop", 10: "tx errs", 11: "tx drop"} {
			v, _ := strconv.ParseUint(f[column], 10, 64)
			l[fmt.Sprintf("%s %s %s", host, name, what)] = v
		}
	}
}

// datapath adds what a node's data path dropped, by reason.
func (l ledger) datapath(node string, c onpath.Counters) {
	for id, v := range c.Vports {
		for reason, packets := range v.Dropped {
			l[fmt.Sprintf("%s vport %d %s", node, id, reason)] = packets
		}
		if v.Device != nil {
			l[fmt.Sprintf("%s vport %d device out", node, id)] = v.Device.Out
			l[fmt.Sprintf("%s vport %d device in", node, id)] = v.Device.In
		}
	}
}

// since says what was lost after the earlier ledger, a line each.
func (l ledger) since(before ledger) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(l)) {
		if n := l[k] - before[k]; n != 0 {
			fmt.Fprintf(&b, "  %s: %d\n", k, n)
		}
	}
	if b.Len() == 0 {
		return "  no counter of lost packets moved\n"
	}
	return b.String()
}

// noneLost ends a stream of which every packet must have been answered; earlier
// is the ledger of when it began.
func noneLost(ctx context.Context, t *testing.T, s *stream, earlier ledger) {
	t.Helper()
	sent, lost, longest := s.end()
	t.Logf("%d sent, %d lost, longest silence %s", sent, lost, longest)
	if lost > 0 {
		t.Errorf("%d of %d packets were lost, of those due at %s; what counted losses:\n%s", lost, sent, s.when(), losses(ctx, t).since(earlier))
	}
}
