package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
)

// TestVerifyAndWatch: the rules of a chain in force are proved, and a watch says
// to the packet how many of a flow's packets a function drops.
func TestVerifyAndWatch(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	applyFile(ctx, t, "testdata/three.yaml")
	active(ctx, t, "three")
	for _, live := range []bool{false, true} {
		p, err := api(t).Verify(ctx, nil, live)
		if err != nil || p.Verdict != onpath.VerdictProved || len(p.Chains) != 1 || p.Chains[0].Scope != onpath.ScopeSegments {
			t.Fatalf("live %t: %+v, %v", live, p, err)
		}
		t.Logf("live %t: %d classes of flows proved in %s", live, p.Classes, time.Duration(p.Took))
	}
	out, err := testbed.Onpath(ctx, "verify", "three")
	if err != nil || !strings.Contains(string(out), "proved") {
		t.Fatalf("onpath verify: %v\n%s", err, out)
	}
	port := udpEcho(t, "10.9.0.2")
	hop := instanceOf(ctx, t, "three-dnat")
	for _, rule := range []string{"add table ip w", "add chain ip w f { type filter hook forward priority 0 ; }",
		fmt.Sprintf("add rule ip w f udp dport %d meta length > 500 drop", port)} {
		var text bytes.Buffer
		if code, err := api(t).Exec(ctx, hop.Metadata.Tenant, hop.Metadata.Name, []string{"nft", rule}, false, session.ExecIO{Stdout: &text, Stderr: &text}); err != nil || code != 0 {
			t.Fatalf("nft %s: %d, %v, %s", rule, code, err, text.String())
		}
	}
	c := dialUDP(t, "10.9.0.2", port)
	defer c.Close()
	if err := ask(c, time.Minute); err != nil { // the entries exist from now on
		t.Fatal(err)
	}
	tuple := tupleOf(c, 17)
	if _, err := api(t).WatchFlow(ctx, tuple, ""); err != nil {
		t.Fatal(err)
	}
	const passed, eaten = 20, 7
	for range passed {
		if err := ask(c, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for range eaten {
		if _, err := c.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	awaitWatch(ctx, t, tuple, hop, passed, eaten)
}

func instanceOf(ctx context.Context, t *testing.T, deployment string) *onpath.Instance {
	t.Helper()
	list, _, err := api(t).List(ctx, onpath.KindInstance, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		if i := o.(*onpath.Instance); i.Spec.Deployment == deployment {
			return i
		}
	}
	t.Fatalf("there is no instance of %s", deployment)
	return nil
}

// awaitWatch waits until every hop has the exact number of packets.
func awaitWatch(ctx context.Context, t *testing.T, tuple onpath.Tuple, hop *onpath.Instance, passed, eaten uint64) {
	t.Helper()
	var last *onpath.FlowWatch
	err := testbed.WaitFor(ctx, "the watch has counted", time.Minute, func() (bool, error) {
		w, err := api(t).WatchFlow(ctx, tuple, "")
		last = w
		return err == nil && exact(w, hop, passed, eaten), err
	})
	if err != nil {
		t.Fatalf("%v: the last look was\nforward %+v\nreverse %+v\nelsewhere %+v\n%v", err, last.Forward, last.Reverse, last.Elsewhere, last.Warnings)
	}
}

func exact(w *onpath.FlowWatch, hop *onpath.Instance, passed, eaten uint64) bool {
	behind := false
	for _, h := range w.Forward {
		in, out := passed+eaten, passed+eaten
		if behind {
			in, out = passed, passed
		}
		if h.Name == hop.Metadata.Tenant+"/"+hop.Metadata.Name {
			out, behind = passed, true
			if h.Function != int64(eaten) {
				return false
			}
		}
		if h.In.Packets != in || h.Out.Packets != out || h.Lost != 0 || len(h.Dropped) > 0 {
			return false
		}
	}
	for _, h := range w.Reverse {
		if h.In.Packets != passed || h.Out.Packets != passed || h.Lost != 0 {
			return false
		}
	}
	return behind && len(w.Reverse) > 0 && len(w.Elsewhere) == 0
}
