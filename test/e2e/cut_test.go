package e2e

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

const cutOverYAML = `apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: guard, tenant: operator}
spec:
  container: {image: host, attach: routed, command: [sh, -c, "exec sleep infinity"]}
  state: none
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: guard, tenant: operator}
spec:
  tier: operator
  existing: cut
  from: any
  to: {prefixes: [10.9.0.0/24]}
  through: [{function: guard, drain: 1s}]
`

// TestCutFlowsOfOthers: an operator's chain with existing: cut that begins over a
// tenant's one gets the flows that run through that: UDP goes on through both, in both
// directions, and TCP is reset and may begin anew; the tenant's instances stay.
func TestCutFlowsOfOthers(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	apply(ctx, t, strings.Replace(strings.Replace(pairChain, "LOST", "none: drop", 1), "name: failing", "name: older", 1))
	active(ctx, t, "older")
	ready(ctx, t, 2)
	srv := serveTCP(t, echo)
	c, err := dialTCP(t, "10.9.0.2", srv.port, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 1)
	if err := pingPong(c, b); err != nil {
		t.Fatal(err)
	}
	port := udpEcho(t, "10.9.0.2")
	udp := onpath.Tuple{Protocol: 17, Src: clientAddress("10.9.0.2"), Dst: netip.MustParseAddr("10.9.0.2"), DstPort: uint16(port)}
	s := startStream(t, "10.9.0.2", port, 500)
	earlier := losses(ctx, t)
	way := func() (forward, reverse string) {
		tr, err := api(t).Trace(ctx, udp, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range tr.Forward {
			if h.Kind == onpath.HopElement && h.Flow == nil {
				return "not seen", ""
			}
		}
		return strings.ReplaceAll(traceHops(tr.Forward), "tunnel ", ""), strings.ReplaceAll(traceHops(tr.Reverse), "tunnel ", "")
	}
	if f, r := way(); f != "edge pair exit" || r != f {
		t.Fatalf("before: forward %q, reverse %q", f, r)
	}

	apply(ctx, t, cutOverYAML)
	err = stage.WaitFor(ctx, "the stream meets both", 10*time.Second, func() (bool, error) {
		f, r := way()
		return f == "edge guard-guard pair exit" && r == "edge pair guard-guard exit", nil
	})
	if err != nil {
		f, r := way()
		t.Errorf("%v: forward %q, reverse %q", err, f, r)
	}
	if err := pingPong(c, b); err == nil {
		t.Error("the old connection goes on past the new chain")
	}
	n, err := dialTCP(t, "10.9.0.2", srv.port, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := pingPong(n, b); err != nil {
		t.Error("a new connection:", err)
	}
	noneLost(ctx, t, s, earlier)
}
