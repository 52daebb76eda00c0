package plan

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/verify"
)

// proveAll holds the plans in force to be without fault.
func (s *sim) proveAll(t *testing.T) *onpath.Verification {
	t.Helper()
	p := verify.Check(verify.Input{Objects: s.objects, Plans: s.snapshot().InForce()})
	if p.Verdict == onpath.VerdictRefuted {
		t.Fatalf("refuted: %s%s", refutations(p), s.dump())
	}
	return p
}

func refutations(p *onpath.Verification) string {
	var out string
	for _, c := range append(slices.Clone(p.Chains), *p.Rest) {
		if c.Verdict == onpath.VerdictRefuted {
			b, _ := json.Marshal(c.Counterexample)
			out += fmt.Sprintf("\n%s: %s", c.Chain, b)
		}
	}
	return out
}

// TestVerifyValid: no plan that the planner makes is refuted.
func TestVerifyValid(t *testing.T) {
	count, proved := 0, 0
	for _, seed := range seeds(t, 12) {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSim(t, seed)
			s.randomSite()
			s.randomPair()
			s.randomObjects()
			for range 10 {
				s.settle()
				p := s.proveAll(t)
				for _, c := range p.Chains {
					count++
					if c.Verdict == onpath.VerdictProved {
						proved++
					}
				}
				s.randomChange()
			}
		})
		if !ok {
			t.Fatalf("repeat with ONPATH_SEED=%d", seed)
		}
	}
	t.Logf("%d of %d chains proved", proved, count)
	if count > 500 && proved < count/2 {
		t.Errorf("only %d of %d chains are proved", proved, count)
	}
}

// spoiltSeeds are always the same worlds in ordinary runs. ONPATH_SEEDS searches in
// many random ones.
func spoiltSeeds(t *testing.T) []uint64 {
	if os.Getenv("ONPATH_SEED")+os.Getenv("ONPATH_SEEDS") != "" || os.Getenv("ONPATH_SOAK") != "" {
		return seeds(t, 40)
	}
	return []uint64{1, 2, 3, 4, 5, 6}
}

// TestVerifyMutations spoils valid plans: whatever a walk of flows shows to go wrong
// that went right before is refuted.
func TestVerifyMutations(t *testing.T) {
	tried, harmful, refuted, shown := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, seed := range spoiltSeeds(t) {
		ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			s := newSim(t, seed)
			s.randomSite()
			s.randomPair()
			s.randomObjects()
			s.settle()
			s.pass(2e9)
			if p := s.proveAll(t); slices.ContainsFunc(p.Chains, func(c onpath.ChainVerification) bool { return c.Verdict == onpath.VerdictUnproven }) {
				return
			}
			w := newWorld(s.snapshot())
			good := s.snapshot().InForce()
			for _, mu := range slices.Concat(mutations, spoils) {
				for range 3 {
					bad := cloned(t, good)
					node := one(s, sortedKeys(bad))
					if !mu.spoil(s, &bad[node].Datapath, bad) {
						continue
					}
					tried[mu.name]++
					j := &harmFinder{s: s, w: w, good: good, bad: bad, spoilt: node}
					p := verify.Check(verify.Input{Objects: s.objects, Plans: bad})
					if p.Verdict == onpath.VerdictRefuted {
						refuted[mu.name]++
						if j.harm(0, j.counterexamples(p)...) != "" {
							shown[mu.name]++
						}
						continue
					}
					why := j.harm(40)
					told := strings.Contains(why, "told of it") && strings.Contains(strings.Join(p.Notes, "; "), "two instances")
					if why != "" && !told {
						harmful[mu.name]++
						t.Errorf("%s at %s is %s, but %s%s", mu.name, node, p.Verdict, why, s.dump())
					}
				}
			}
		})
		if !ok {
			t.Fatalf("repeat with ONPATH_SEED=%d", seed)
		}
	}
	for _, mu := range slices.Concat(mutations, spoils) {
		t.Logf("%-38s tried %4d, refuted %4d, of these shown by a flow %4d, missed %4d", mu.name, tried[mu.name], refuted[mu.name], shown[mu.name], harmful[mu.name])
	}
}

// counterexamples are the flows of a proof.
func (j *harmFinder) counterexamples(p *onpath.Verification) (out []flow) {
	for _, c := range append(slices.Clone(p.Chains), *p.Rest) {
		x := c.Counterexample
		if x == nil || j.bad[x.Entry] == nil {
			continue
		}
		f := flow{node: x.Entry, tuple: x.Tuple, emits: x.Instance != ""}
		d := &j.bad[x.Entry].Datapath
		if !f.emits && d.Edge != nil {
			f.at = d.Edge.Vport
		}
		for i := range d.Vports {
			if v := &d.Vports[i]; f.emits && v.Instance == x.Instance {
				f.at = v.ID
				out = append(out, f)
			}
		}
		if !f.emits {
			out = append(out, f)
		}
	}
	return out
}

// TestVerifyPair: answers that come in at the second gateway of a pair must find
// the instance, and each gateway must know the other.
func TestVerifyPair(t *testing.T) {
	s := fraWeb(t, 2, 1)
	s.apply(aNode("fra1-gw2", "fra1", 190, true))
	s.connect("fra1-gw2")
	s.settle()
	check := func(spoil func(*onpath.DatapathConfig)) *onpath.Verification {
		plans := cloned(t, s.snapshot().InForce())
		spoil(&plans["fra1-gw2"].Datapath)
		return verify.Check(verify.Input{Objects: s.objects, Plans: plans})
	}
	isRemote := func(v onpath.Vport) bool { return v.Kind == onpath.VportRemote && v.Backup == 0 }
	if p := check(func(*onpath.DatapathConfig) {}); p.Verdict != onpath.VerdictProved || len(p.Notes) > 0 {
		t.Fatalf("the pair is %s, notes %q%s", p.Verdict, p.Notes, refutations(p))
	}
	if p := check(func(d *onpath.DatapathConfig) { d.Vports = slices.DeleteFunc(d.Vports, isRemote) }); p.Verdict != onpath.VerdictRefuted {
		t.Errorf("a gateway that does not know the instances is %s", p.Verdict)
	} else if !strings.Contains(strings.Join(p.Notes, "; "), "may meet two instances") {
		t.Errorf("nothing is said of flows of which such a gateway is told: %q", p.Notes)
	}
	for what, spoil := range map[string]func(*onpath.DatapathConfig){
		"as its partner": func(d *onpath.DatapathConfig) {
			for i := range d.Vports {
				d.Vports[i].Backup = 0
			}
		},
		"gone": func(d *onpath.DatapathConfig) {
			for i := range d.Vports {
				if d.Vports[i].Backup != 0 {
					d.Vports[i].State = onpath.VportClosed
				}
			}
		},
		"choose differently": func(d *onpath.DatapathConfig) {
			for i := range d.Groups {
				for k := range d.Groups[i].Members {
					d.Groups[i].Members[k].Weight += uint32(k) + 1
				}
			}
		},
	} {
		if p := check(spoil); !strings.Contains(strings.Join(p.Notes, "; "), what) {
			t.Errorf("nothing is said of a gateway that %s: %s, notes %q", what, p.Verdict, p.Notes)
		}
	}
}

// aRedirecting is an ebpf function that may send packets to later elements.
func aRedirecting(tenant, name string) *onpath.Function {
	f := aFunction(tenant, name, func(f *onpath.FunctionSpec) {
		f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "./jump.o", Code: onpath.ObjectCode("jump")}
	})
	f.Status.Redirects = true
	return f
}

// TestVerifyRedirect: where a function may send packets to later elements, these ways
// are proved as well, and the proof says which they are.
func TestVerifyRedirect(t *testing.T) {
	s := newSim(t, 1)
	s.site("fra1", 1, 2)
	s.apply(aFunction("default", "box", nil), aRedirecting("default", "jump"))
	chain := aChain("default", "web", through("jump", 1), through("box", 1))
	for _, d := range []string{"between", "last"} {
		s.apply(aDeployment("default", d, "box", 2))
		chain.Spec.Through = append(chain.Spec.Through, onpath.Element{Deployment: onpath.Ref(d)})
	}
	s.apply(chain)
	s.settle()
	s.pass(2e9)
	check := func(spoil func(*onpath.DatapathConfig)) *onpath.Verification {
		plans := cloned(t, s.snapshot().InForce())
		spoil(&plans["fra1-gw"].Datapath)
		return verify.Check(verify.Input{Objects: s.objects, Plans: plans})
	}
	p := check(func(*onpath.DatapathConfig) {})
	if p.Verdict != onpath.VerdictProved {
		t.Fatalf("the chain is %s%s", p.Verdict, refutations(p))
	}
	if said := strings.Join(p.Chains[0].Redirects, "; "); !strings.Contains(said, "element 1 (default/web-jump) may send packets to elements 2 (default/web-box), 3 (default/between), 4 (default/last)") {
		t.Errorf("of redirects it says %q", said)
	}
	last := onpath.GroupOf(s.chain("default", "web").Status.Path, 3, false)
	p = check(func(d *onpath.DatapathConfig) {
		d.Groups = slices.DeleteFunc(d.Groups, func(g onpath.Group) bool { return g.ID == last })
	})
	if p.Verdict != onpath.VerdictRefuted {
		t.Fatalf("with no group for the last element where the function runs, the chain is %s", p.Verdict)
	}
	if x := p.Chains[0].Counterexample; !strings.Contains(notes(x.Way), "sent to element 4 by the code of default/web-jump") {
		t.Errorf("the flow shown goes %v: %s", x.Way, x.Message)
	}
	f := s.objects[onpath.Key{Kind: onpath.KindFunction, Tenant: "default", Name: "jump"}].(*onpath.Function)
	f.Status.Redirects = false
	if p := check(func(d *onpath.DatapathConfig) {
		d.Groups = slices.DeleteFunc(d.Groups, func(g onpath.Group) bool { return g.ID == last })
	}); p.Verdict == onpath.VerdictRefuted && strings.Contains(notes(p.Chains[0].Counterexample.Way), "by the code of") {
		t.Errorf("a function that redirects nothing is taken to: %v", p.Chains[0].Counterexample.Way)
	}
}

// TestVerifyNoReport: what rests on a node that cannot be asked is not proved; all else
// is, and what is refuted all the same stays so.
func TestVerifyNoReport(t *testing.T) {
	s := newSim(t, 7)
	s.site("fra1", 1, 2)
	s.site("ams1", 2, 1)
	s.apply(aFunction("default", "fw", nil))
	fra := aChain("default", "fra", through("fw", 1))
	fra.Spec.At.Cloudlets = []string{"fra1"}
	ams := aChain("default", "ams", through("fw", 1))
	ams.Spec.At.Cloudlets, ams.Spec.To = []string{"ams1"}, onpath.Endpoints{Prefixes: prefixes("203.0.113.0/24")}
	s.apply(fra, ams)
	s.settle()
	in := verify.Input{Objects: s.objects, Plans: s.snapshot().InForce()}
	host, other := "", ""
	for _, o := range s.objects {
		if i, ok := o.(*onpath.Instance); ok && i.Spec.Deployment == "fra-fw" {
			host = i.Spec.Node
		}
	}
	for n := range in.Plans {
		if strings.HasPrefix(n, "fra1-n") && n != host {
			other = n
		}
	}
	cases := []struct {
		node           string
		fra, ams, rest onpath.Verdict
	}{
		{"fra1-gw", onpath.VerdictUnproven, onpath.VerdictProved, onpath.VerdictUnproven},
		{host, onpath.VerdictUnproven, onpath.VerdictProved, onpath.VerdictProved},
		{other, onpath.VerdictProved, onpath.VerdictProved, onpath.VerdictProved},
		{"", onpath.VerdictProved, onpath.VerdictProved, onpath.VerdictProved},
	}
	for _, c := range cases {
		in.NoReport = map[string]string{c.node: "it is not connected"}
		p := verify.Check(in)
		got := map[string]onpath.Verdict{}
		for _, r := range p.Chains {
			got[r.Chain] = r.Verdict
			if r.Verdict == onpath.VerdictUnproven && !strings.HasSuffix(r.Reason, c.node+", of which it is not known what it has in force: it is not connected") &&
				!strings.HasSuffix(r.Reason, "at gateway "+c.node+" nothing is known: it is not connected") {
				t.Errorf("without %s: %s: %s", c.node, r.Chain, r.Reason)
			}
		}
		if got["default/fra"] != c.fra || got["default/ams"] != c.ams || p.Rest.Verdict != c.rest {
			t.Errorf("without %q: %v, rest %s", c.node, got, p.Rest.Verdict)
		}
		if slices.Contains(p.NoReport, c.node) != (c.fra == onpath.VerdictUnproven) {
			t.Errorf("without %q: rests on %v", c.node, p.NoReport)
		}
	}
	gone := *in.Plans["fra1-gw"]
	edge := *gone.Datapath.Edge
	edge.Table, gone.Datapath.Edge = 0, &edge
	in.Plans["fra1-gw"], in.NoReport = &gone, map[string]string{"fra1-gw": "it is not connected"}
	if p := verify.Check(in); p.Verdict != onpath.VerdictRefuted {
		t.Errorf("refuted by its last word: %+v", p)
	}
}
