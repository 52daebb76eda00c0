package control_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func TestVerify(t *testing.T) {
	s := threeNodes(t)
	ctx := context.Background()
	p, err := s.c.Verify(ctx, onpath.VerifyRequest{})
	if err != nil || p.Verdict != onpath.VerdictProved || len(p.Chains) != 0 || p.Rest == nil || p.Rest.Classes == 0 {
		t.Fatalf("without chains: %+v, %v", p, err)
	}
	began := time.Now()
	if err := s.c.VerifyChange(ctx, s.changes(web(2))); err != nil {
		t.Fatalf("a good change is refused: %v", err)
	}
	t.Logf("a change is proved in %s", time.Since(began))
	s.apply(web(2))
	s.until("active", s.active)
	if p, err = s.c.Verify(ctx, onpath.VerifyRequest{}); err != nil || p.Chains[0].Verdict == onpath.VerdictIdle {
		t.Fatalf("a chain that says that it steers: %+v, %v", p, err)
	}
	for _, live := range []bool{false, true} {
		s.until("the nodes acknowledge", func() bool {
			p, err = s.c.Verify(ctx, onpath.VerifyRequest{Chains: []string{"default/web"}, Live: live})
			return err != nil || len(p.Notes) == 0
		})
		if err != nil || p.Verdict != onpath.VerdictProved || len(p.Chains) != 1 || p.Live != live || p.Rest != nil {
			t.Fatalf("live %t: %+v, %v", live, p, err)
		}
		if c := p.Chains[0]; c.Verdict != onpath.VerdictProved || c.Classes < 2 || c.Scope != onpath.ScopeEndToEnd || len(c.Segments) != 1 {
			t.Errorf("live %t: %+v", live, c)
		}
	}
	if _, err := s.c.Verify(ctx, onpath.VerifyRequest{Chains: []string{"default/wob"}}); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("an unknown chain: %v", err)
	}
	if _, err := s.c.Verify(ctx, onpath.VerifyRequest{Chains: []string{"default/web"}, Tenant: "rival"}); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("another tenant's chain: %v", err)
	}
	if p, err := s.c.Verify(ctx, onpath.VerifyRequest{Tenant: "rival"}); err != nil || len(p.Chains) != 0 || p.Rest != nil {
		t.Errorf("a tenant without chains: %+v, %v", p, err)
	}
	s.nodes["gw"].disconnect()
	s.until("it is told that a node is not there", func() bool {
		p, err = s.c.Verify(ctx, onpath.VerifyRequest{Live: true})
		return err != nil || len(p.Notes) == 1 && strings.HasPrefix(p.Notes[0], "node gw: it is not connected, ")
	})
	if err != nil || p.Verdict != onpath.VerdictUnproven || !slices.Equal(p.NoReport, []string{"gw"}) || p.Rest.Verdict != onpath.VerdictUnproven {
		t.Errorf("live without its gateway: %+v, %v", p, err)
	}
	if c := p.Chains[0]; c.Verdict != onpath.VerdictUnproven || c.Reason != "of what comes in at gateway gw nothing is known: it is not connected" {
		t.Errorf("live without its gateway: %+v", c)
	}
	s.mu.Lock()
	s.nodes["n1"].lost = []string{"gw"}
	s.mu.Unlock()
	s.nodes["n1"].report()
	p, err = s.c.Verify(ctx, onpath.VerifyRequest{Live: true})
	if err != nil || !strings.HasSuffix(p.Chains[0].Reason, "it is not connected, and node n1 does not reach it either") {
		t.Errorf("live without a gateway that its peer does not reach: %+v, %v", p, err)
	}
	p, err = s.c.Verify(ctx, onpath.VerifyRequest{})
	if err != nil || p.Verdict != onpath.VerdictProved || p.NoReport != nil {
		t.Errorf("planned, without its gateway: %+v, %v", p, err)
	}
	if err := s.c.VerifyChange(ctx, s.changes(web(3))); err != nil {
		t.Errorf("a good change, without the gateway: %v", err)
	}
}

// TestVerifyRefutes: what the gateway has in force is looked at, not what it
// ought to have.
func TestVerifyRefutes(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(2))
	s.until("active", s.active)
	s.until("the nodes acknowledge", func() bool {
		p, err := s.c.Verify(context.Background(), onpath.VerifyRequest{})
		return err == nil && p.Verdict == onpath.VerdictProved && len(p.Notes) == 0 && p.Chains[0].Verdict == onpath.VerdictProved // and not idle
	})
	gw := s.nodes["gw"]
	gw.disconnect()
	gone, edge := *s.plan("gw"), *s.plan("gw").Datapath.Edge
	edge.Table = 0
	gone.Datapath.Edge = &edge
	s.mu.Lock()
	gw.plan, gw.deaf = &gone, true
	s.mu.Unlock()
	gw.connect()
	p, err := s.c.Verify(context.Background(), onpath.VerifyRequest{Live: true})
	if err != nil || p.Verdict != onpath.VerdictRefuted {
		t.Fatalf("%+v, %v", p, err)
	}
	x := p.Chains[0].Counterexample
	if x == nil || x.Entry != "gw" || x.Tuple.Dst.String() != "198.51.100.10" || !strings.Contains(x.Message, "ordinary forwarding") {
		t.Errorf("the counterexample is %+v", x)
	}
}

// TestVerifyLeases: leases take packets that no chain selects; the proof says that it does not
// cover what becomes of them, and what chains promise is proved as before.
func TestVerifyLeases(t *testing.T) {
	s := threeNodes(t)
	s.apply(web(2))
	s.until("active", s.active)
	s.mu.Lock()
	s.nodes["gw"].leases = []onpath.LeaseReport{{Name: "gw-m", LeaseSpec: onpath.LeaseSpec{Publisher: "voice", Module: "m", Vport: 7,
		Until: time.Now().Add(time.Hour)}}}
	s.mu.Unlock()
	s.nodes["gw"].report()
	var p *onpath.Verification
	s.until("the proof names the lease", func() bool {
		var err error
		p, err = s.c.Verify(context.Background(), onpath.VerifyRequest{})
		return err != nil || p.Rest != nil && len(p.Rest.Notes) == 1
	})
	if p == nil || p.Verdict != onpath.VerdictProved || !strings.HasPrefix(p.Rest.Notes[0], "not checked: what leased modules of publisher voice (1) do at node gw") {
		t.Errorf("%+v", p)
	}
	if p, err := s.c.Verify(context.Background(), onpath.VerifyRequest{Chains: []string{"default/web"}}); err != nil || p.Rest != nil || p.Verdict != onpath.VerdictProved {
		t.Errorf("of one chain: %+v, %v", p, err)
	}
}
