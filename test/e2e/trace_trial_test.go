package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
)

// trialYAML is a chain of a router, a bridge, a translator and a router that is declared
// to originate, each of the first three dropping a port of its own and counting that.
func trialYAML(open int) string {
	const element = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: %s}
spec:
  container:
    image: host
    attach: %s
    addresses: none
    capabilities: [NET_ADMIN]
    command:
    - sh
    - -c
    - |
      %s
      trap 'exit 0' TERM
      touch /run/ready
      sleep infinity & wait
  state: flow
  packets: %s
  health: {exec: [test, -e, /run/ready], every: 100ms}
---`
	drop := func(family string, port int) string {
		return fmt.Sprintf("nft 'add table %[1]s w; add chain %[1]s w f { type filter hook forward priority 0; }; add rule %[1]s w f tcp dport %[2]d counter drop'", family, port)
	}
	bridge := "ip link add br0 type bridge stp_state 0 mcast_snooping 0 forward_delay 0; ip link set eth0 master br0 up; ip link set eth1 master br0 up; ip link set br0 up; "
	nat := "nft 'add table inet n; add chain inet n p { type nat hook prerouting priority dstnat; }; add rule inet n p ip daddr 10.9.0.100 dnat ip to 10.9.0.2; add rule inet n p ip6 daddr fd09::100 dnat ip6 to fd09::2'; "
	return fmt.Sprintf(element, "gate", "routed", drop("inet", open+1), "keep") +
		fmt.Sprintf(element, "wire", "bridged", bridge+drop("bridge", open+2), "keep") +
		fmt.Sprintf(element, "turn", "routed", nat+drop("inet", open+3), "rewrite") +
		fmt.Sprintf(element, "last", "routed", "true", "originate") + `
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: trial}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{function: gate, drain: 1s}, {function: wire, drain: 1s}, {function: turn, drain: 1s}, {function: last, drain: 1s}]
`
}

// TestTraceTrial: of flows of the same two hosts at the same time, which one element or
// another drops or none, a trace names the element where the kernel counts the drop, and
// follows the flows that live both ways. In no case it cannot tell.
func TestTraceTrial(t *testing.T) {
	ctx := need(t, 15*time.Minute)
	s := serveTCP(t, echo)
	apply(ctx, t, trialYAML(s.port))
	active(ctx, t, "trial")
	rounds, cases := 1, 0
	hosts := []string{"10.9.0.2", "fd09::100", "10.9.0.100", "fd09::2"} // itself, and translated
	if os.Getenv("ONPATH_SOAK") != "" {
		rounds = 13
	} else {
		hosts = hosts[:2]
	}
	counted := map[string]string{}
	elements := []string{"trial-gate", "trial-wire", "trial-turn", "trial-last"}
	for range rounds {
		for _, to := range hosts {
			alive, err := dialTCP(t, to, s.port, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			defer alive.Close()
			if _, err := alive.Write([]byte("still here")); err != nil {
				t.Fatal(err)
			}
			if _, err := alive.Read(make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			for blocked := range 4 {
				met, ends := elements[:blocked], true
				if blocked == 0 {
					met, ends = elements, false
				} else {
					checkDropped(ctx, t, to, s.port+blocked, elements[blocked-1], counted)
				}
				tu := onpath.Tuple{Protocol: 6, Src: clientAddress(to), Dst: netip.MustParseAddr(to), DstPort: uint16(s.port + blocked)}
				tr, err := api(t).Trace(ctx, tu, "")
				if err != nil {
					t.Fatal(err)
				}
				cases++
				checkTrial(t, tr, met, ends)
			}
		}
	}
	t.Logf("%d cases", cases)
}

// checkDropped has an element drop a connection attempt, and reads that off its kernel.
func checkDropped(ctx context.Context, t *testing.T, to string, port int, element string, counted map[string]string) {
	t.Helper()
	if c, err := dialTCP(t, to, port, 150*time.Millisecond); err == nil {
		c.Close()
		t.Fatalf("port %d of %s is not dropped", port, to)
	}
	after := droppedIn(ctx, t, element)
	if after == counted[element] || strings.Contains(after, "packets 0 ") {
		t.Fatalf("%s did not drop port %d of %s: %s", element, port, to, after)
	}
	counted[element] = after
}

// droppedIn is the counter in an element's kernel.
func droppedIn(ctx context.Context, t *testing.T, element string) string {
	t.Helper()
	i := instanceOf(ctx, t, element)
	var text bytes.Buffer
	code, err := api(t).Exec(ctx, i.Metadata.Tenant, i.Metadata.Name, []string{"nft", "list", "ruleset"}, false, session.ExecIO{Stdout: &text, Stderr: &text})
	if err != nil || code != 0 {
		t.Fatalf("nft list ruleset: %d, %v, %s", code, err, text.String())
	}
	for line := range strings.Lines(text.String()) {
		if strings.Contains(line, "counter packets") {
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("%s has no counter: %s", element, text.String())
	return ""
}

// checkTrial compares a trace with the elements that its flow has met.
func checkTrial(t *testing.T, tr *onpath.Trace, met []string, ends bool) {
	t.Helper()
	elements := func(hops []onpath.TraceHop) (list []string) {
		for _, h := range hops {
			if h.Unsure || !h.Live {
				t.Errorf("%v: it cannot tell: %+v", tr.Tuple, h)
			}
			if h.Kind == onpath.HopElement {
				list = append(list, traceHops([]onpath.TraceHop{h}))
			}
		}
		return list
	}
	last := tr.Forward[len(tr.Forward)-1]
	if got := elements(tr.Forward); !tr.Live || !slices.Equal(got, met) || last.Ends != ends || len(tr.Warnings) > 0 {
		t.Errorf("%v: live %v, passes %v, want %v; ends with %+v, warnings %q", tr.Tuple, tr.Live, got, met, last, tr.Warnings)
	}
	if ends {
		return
	}
	back := elements(tr.Reverse)
	slices.Reverse(back)
	if !slices.Equal(back, met) || last.Kind != onpath.HopExit || tr.Reverse[len(tr.Reverse)-1].Kind != onpath.HopExit {
		t.Errorf("%v: answers pass %v, want %v", tr.Tuple, back, met)
	}
}
