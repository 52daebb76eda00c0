package e2e

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// traceHops are a way's hops: kinds, and of elements their deployments.
func traceHops(hops []onpath.TraceHop) string {
	var out []string
	for _, h := range hops {
		word := string(h.Kind)
		if h.Kind == onpath.HopElement {
			_, instance, _ := strings.Cut(h.Name, "/")
			word = instance[:max(0, strings.LastIndex(instance, "-"))]
		}
		out = append(out, word)
	}
	return strings.Join(out, " ")
}

func traced(ctx context.Context, t *testing.T, port int) *onpath.Trace {
	t.Helper()
	tu := onpath.Tuple{Protocol: 6, Src: clientAddress("10.9.0.2"), Dst: netip.MustParseAddr("10.9.0.2"), DstPort: uint16(port)}
	tr, err := api(t).Trace(ctx, tu, "")
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestTraceFunctions: ebpf functions before and behind a container are on the way of
// a flow that is seen, in both directions, and a flow that one drops ends there, or may
// do so where no place behind it could tell.
func TestTraceFunctions(t *testing.T) {
	for _, chain := range []struct{ name, yaml, forward, reverse, dropped, says string }{
		{"around a container", functionYAML("drop tcp to any port 25"),
			"edge inline-filter tunnel inline-hop tunnel inline-guard exit",
			"edge inline-guard tunnel inline-hop tunnel inline-filter exit", "edge inline-filter drop", "ends here"},
		{"alone", aloneYAML, "edge inline-filter exit", "edge inline-filter exit", "edge inline-filter exit", "may have dropped"},
	} {
		t.Run(chain.name, func(t *testing.T) {
			ctx := need(t, 2*time.Minute)
			apply(ctx, t, chain.yaml)
			active(ctx, t, "inline")
			s := serveTCP(t, echo)
			transfer(t, s, "10.9.0.2", 1<<20)
			tr := traced(ctx, t, s.port)
			if f, r := traceHops(tr.Forward), traceHops(tr.Reverse); !tr.Live || f != chain.forward || r != chain.reverse {
				t.Errorf("live %v, forward %q, reverse %q, want %q, %q", tr.Live, f, r, chain.forward, chain.reverse)
			}
			if len(tr.Warnings) > 0 || len(tr.Chains) != 1 {
				t.Errorf("chains %v, warnings %q", tr.Chains, tr.Warnings)
			}
			for _, h := range tr.Forward {
				if strings.Contains(h.Name, "inline-filter") && (h.Flow == nil || h.Flow.Packets == 0 || h.State != "ready" || h.Counters == nil) {
					t.Errorf("of the function it says %+v", h)
				}
			}
			if c, err := dialTCP(t, "10.9.0.2", 25, 300*time.Millisecond); err == nil {
				c.Close()
				t.Fatal("port 25 is not dropped")
			}
			tr = traced(ctx, t, 25)
			if f := traceHops(tr.Forward); f != chain.dropped || len(tr.Warnings) > 0 {
				t.Errorf("port 25: forward %q, reverse %q, warnings %q", f, traceHops(tr.Reverse), tr.Warnings)
			}
			if k := len(tr.Forward) - 1; k < 0 || !strings.Contains(tr.Forward[k].Message, chain.says) {
				t.Errorf("port 25: %+v", tr.Forward)
			}
			watchFunctions(ctx, t, s)
		})
	}
}

// watchFunctions: each packet of a watched flow is accounted for, also where functions
// are passed and where one drops them.
func watchFunctions(ctx context.Context, t *testing.T, s *tcpServer) {
	t.Helper()
	for _, port := range []int{s.port, 25} {
		tu := onpath.Tuple{Protocol: 6, Src: clientAddress("10.9.0.2"), Dst: netip.MustParseAddr("10.9.0.2"), DstPort: uint16(port)}
		if _, err := api(t).WatchFlow(ctx, tu, ""); err != nil {
			t.Fatal(err)
		}
		if port == 25 {
			if c, err := dialTCP(t, "10.9.0.2", 25, 300*time.Millisecond); err == nil {
				c.Close()
			}
		} else {
			transfer(t, s, "10.9.0.2", 1<<20)
		}
		var last *onpath.FlowWatch
		err := testbed.WaitFor(ctx, "the watch has counted "+net.JoinHostPort("10.9.0.2", strconv.Itoa(port)), time.Minute, func() (bool, error) {
			w, err := api(t).WatchFlow(ctx, tu, "")
			last = w
			if err != nil || len(w.Forward) < 2 || w.Forward[0].In.Packets == 0 {
				return false, err
			}
			eaten := int64(0)
			for _, h := range append(w.Forward, w.Reverse...) {
				if eaten += h.Function; h.Lost != 0 || len(h.Dropped) > 0 || h.Function != 0 && !strings.Contains(h.Name, "inline-filter") {
					return false, nil
				}
			}
			return eaten > 0 == (port == 25) && len(w.Elsewhere) == 0, nil
		})
		if err != nil {
			t.Errorf("%v: the last look was\nforward %+v\nreverse %+v\nelsewhere %+v", err, last.Forward, last.Reverse, last.Elsewhere)
		}
	}
}

const aloneYAML = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: filter}
spec:
  state: none
  ebpf: {object: firewall, budget: 50us, config: {rules: "drop tcp to any port 25"}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: inline}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{function: filter, drain: 1s}]
`
