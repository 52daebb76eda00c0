package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/verify"
)

func aClaim(tenant, name, prefix string, state onpath.ClaimState, since, until time.Time) *onpath.PrefixClaim {
	o, _ := onpath.New(onpath.KindPrefixClaim)
	c := o.(*onpath.PrefixClaim)
	c.Metadata.Name, c.Metadata.Tenant = name, tenant
	c.Spec.Prefix, c.Spec.Method = prefixes(prefix)[0], onpath.ByPassword
	c.Status = onpath.PrefixClaimStatus{State: state, Prefix: c.Spec.Prefix, Since: since, Until: until}
	return c
}

// TestClaimLost: a chain of what a claim proves steers while the proof holds; with it the
// rules go, the chain says why, and takes part again with the next proof.
func TestClaimLost(t *testing.T) {
	s := newSim(t, 1)
	s.site("fra1", 1, 2)
	none := aTenant("bob")
	none.Spec.Addresses = nil
	s.objects[onpath.KeyOf(none)] = none
	web := aChain("bob", "web", through("fwd", 1))
	web.Spec.To = onpath.Endpoints{Prefixes: prefixes("10.2.0.5")}
	s.apply(aFunction("bob", "fwd", nil), web)
	if err := Check(s.snapshot()); err == nil {
		t.Fatal("a chain of what nothing proves is not refused")
	}
	s.apply(aClaim("bob", "site", "10.2.0.5", onpath.ClaimProved, s.now, s.now.Add(20*time.Second)))
	if err := Check(s.snapshot()); err != nil {
		t.Fatal(err)
	}
	s.settle()
	if !s.chain("bob", "web").Status.Active {
		t.Fatalf("%+v", s.chain("bob", "web").Status)
	}
	s.pass(30 * time.Second)
	c := s.chain("bob", "web")
	if r := reasonOf(c.Status.Conditions, "Active"); c.Status.Active || r != onpath.ReasonNotOwned {
		t.Errorf("after the proof's end: %+v", c.Status)
	}
	for _, tab := range s.snapshot().InForce()["fra1-gw"].Datapath.Tables {
		if tab.ID == onpath.ClassifierTable(onpath.TierTenant) && len(tab.Rules) > 0 {
			t.Errorf("rules are left: %+v", tab.Rules)
		}
	}
	s.apply(aClaim("bob", "site", "10.2.0.5", onpath.ClaimProved, s.now, s.now.Add(time.Hour)))
	s.settle()
	if !s.chain("bob", "web").Status.Active {
		t.Errorf("with another proof: %+v", s.chain("bob", "web").Status)
	}
}

// estate is a random set of tenants' prefixes and chains in 10.0.0.0/28.
type estate struct {
	rng    *rand.Rand
	of     map[string][]*onpath.PrefixClaim
	chains []*onpath.Chain
}

func (e *estate) prefix() netip.Prefix {
	a := netip.AddrFrom4([4]byte{10, 0, 0, byte(e.rng.IntN(16))})
	return netip.PrefixFrom(a, 32-e.rng.IntN(5)).Masked()
}

func newEstate(rng *rand.Rand, now time.Time) *estate {
	e := &estate{rng: rng, of: map[string][]*onpath.PrefixClaim{}}
	for i := range 3 {
		tenant := fmt.Sprintf("t%d", i)
		for j := range 1 + rng.IntN(3) {
			since := now.Add(-time.Duration(1+rng.IntN(3)) * time.Hour)
			c := aClaim(tenant, fmt.Sprintf("c%d", j), e.prefix().String(), onpath.ClaimProved, since, now.Add(time.Hour))
			if !slices.ContainsFunc(e.of[tenant], func(o *onpath.PrefixClaim) bool { return o.Spec.Prefix == c.Spec.Prefix }) {
				e.of[tenant] = append(e.of[tenant], c)
			}
		}
		for j := range 1 + rng.IntN(2) {
			e.chains = append(e.chains, e.chain(tenant, j))
		}
	}
	return e
}

// chain is one of a tenant's from or to something of its own.
func (e *estate) chain(tenant string, j int) *onpath.Chain {
	c := aChain(tenant, fmt.Sprintf("w%d", j), through(fmt.Sprintf("f%d", j), 1))
	c.Spec.Priority = j
	var own []onpath.Prefix
	for _, p := range e.of[tenant] {
		if len(own) == 0 || e.rng.IntN(2) == 0 {
			own = append(own, p.Spec.Prefix)
		}
	}
	other := onpath.Endpoints{Any: true}
	if e.rng.IntN(2) == 0 {
		other = onpath.Endpoints{Prefixes: []onpath.Prefix{{Prefix: e.prefix()}, {Prefix: e.prefix()}}}
	}
	c.Spec.From, c.Spec.To = other, onpath.Endpoints{Prefixes: own}
	if e.rng.IntN(3) == 0 {
		c.Spec.From, c.Spec.To = c.Spec.To, c.Spec.From
	}
	if e.rng.IntN(3) == 0 {
		c.Spec.Direction = onpath.DirectionForward
	}
	return c
}

func atEnd(e onpath.Endpoints, a netip.Addr) bool {
	return e.Any || slices.ContainsFunc(e.Prefixes, func(p onpath.Prefix) bool { return p.Contains(a) })
}

// meant is the chain that a packet of the first of a flow is to meet, read off the rule as
// people say it; "" for none.
func (e *estate) meant(src, dst netip.Addr) string {
	type titled struct {
		bits, dst int
		since     time.Time
		tenant    string
	}
	title := func(tenant string) (best titled) {
		best.bits = -1
		for _, c := range e.of[tenant] {
			for _, side := range []int{1, 0} {
				if a := [2]netip.Addr{src, dst}[side]; !c.Spec.Prefix.Contains(a) {
					continue
				}
				x := titled{c.Spec.Prefix.Bits(), side, c.Status.Since, tenant}
				if x.bits > best.bits || x.bits == best.bits && (x.dst > best.dst || x.dst == best.dst && x.since.Before(best.since)) {
					best = x
				}
			}
		}
		return best
	}
	winner, name, priority, forward := titled{bits: -1}, "", 0, false
	for _, c := range e.chains {
		f := atEnd(c.Spec.From, src) && atEnd(c.Spec.To, dst)
		r := c.Spec.Direction != onpath.DirectionForward && atEnd(c.Spec.From, dst) && atEnd(c.Spec.To, src)
		if !f && !r {
			continue
		}
		x := title(c.Metadata.Tenant)
		better := x.bits > winner.bits || x.bits == winner.bits && (x.dst > winner.dst || x.dst == winner.dst &&
			(x.since.Before(winner.since) || x.since.Equal(winner.since) && x.tenant < winner.tenant))
		same := x.tenant == winner.tenant
		if !same && better || same && (c.Spec.Priority > priority || c.Spec.Priority == priority && f && !forward) {
			winner, name, priority, forward = x, nameOf(c).String(), c.Spec.Priority, f
		}
	}
	return name
}

// met is the chain to which a node's rules lead a packet.
func met(t *testing.T, d *onpath.DatapathConfig, src, dst netip.Addr) string {
	t.Helper()
	in := func(list []netip.Prefix, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, tab := range d.Tables {
		if tab.ID != onpath.ClassifierTable(onpath.TierTenant) {
			continue
		}
		for _, r := range tab.Rules {
			if in(r.Match.Src, src) && in(r.Match.Dst, dst) {
				return d.Paths[slices.IndexFunc(d.Paths, func(p onpath.Path) bool { return p.ID == r.Path })].Chain
			}
		}
	}
	return ""
}

// TestClaimsAgainstReading: with random claims and chains every packet meets the chain that
// the rule names when it is read as it stands; and the proof of what chains promise agrees.
func TestClaimsAgainstReading(t *testing.T) {
	rounds, verified := 150, 10 // every tenth one is verified
	if os.Getenv("ONPATH_SOAK") != "" {
		rounds, verified = 10_000, 1
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	contested := 0
	for round := range rounds {
		rng := rand.New(rand.NewPCG(seed, uint64(round)))
		s := newSim(t, 1)
		s.site("fra1", 1, 1)
		e := newEstate(rng, s.now)
		for tenant, claims := range e.of {
			o := aTenant(tenant)
			o.Spec.Addresses = nil
			s.objects[onpath.KeyOf(o)] = o
			s.apply(aFunction(tenant, "f0", nil), aFunction(tenant, "f1", nil))
			for _, c := range claims {
				s.objects[onpath.KeyOf(c)] = c // Validate takes single addresses only; the rule is for all
			}
		}
		for _, c := range e.chains {
			s.apply(c)
		}
		if err := Check(s.snapshot()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		s.settle()
		d := &s.snapshot().InForce()["fra1-gw"].Datapath
		tenants := map[string]bool{}
		for i := range 18 * 18 {
			src, dst := netip.AddrFrom4([4]byte{10, 0, 0, byte(i % 18)}), netip.AddrFrom4([4]byte{10, 0, 0, byte(i / 18)})
			want := e.meant(src, dst)
			if got := met(t, d, src, dst); got != want {
				t.Fatalf("round %d: %s to %s meets %q, not %q", round, src, dst, got, want)
			}
			tenants[nameIn(want).tenant] = true
		}
		if len(tenants) > 2 {
			contested++
		}
		if round%verified == 0 {
			if p := verify.Check(verify.Input{Now: s.now, Objects: s.objects, Plans: s.snapshot().InForce()}); p.Verdict != onpath.VerdictProved {
				t.Fatalf("round %d: verify says %+v", round, p)
			}
		}
	}
	if contested < rounds/4 {
		t.Errorf("in %d of %d rounds only there was traffic of several tenants", contested, rounds)
	}
}
