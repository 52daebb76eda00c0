package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// twoTenants have an active chain each; bob's from any to acme's site, by a prefix that is
// longer than acme's.
func twoTenants(t *testing.T) *sim {
	s := newSim(t, 1)
	s.site("fra1", 1, 2)
	web := aChain("acme", "web", through("fwd", 1))
	web.Spec.From, web.Spec.To = onpath.Endpoints{Prefixes: prefixes("10.1.0.0/24")}, onpath.Endpoints{Prefixes: prefixes("10.9.0.2")}
	s.apply(aTenant("acme"), aTenant("bob", "10.9.0.0/16"), web, aFunction("acme", "fwd", nil), aFunction("bob", "fwd", nil))
	s.settle()
	thief := aChain("bob", "thief", through("fwd", 1))
	thief.Spec.To = onpath.Endpoints{Prefixes: prefixes("10.9.0.0/16")}
	s.apply(thief)
	return s
}

func isWhole(c *onpath.Chain) (onpath.Condition, bool) {
	i := slices.IndexFunc(c.Status.Conditions, func(c onpath.Condition) bool { return c.Type == whole })
	if i < 0 {
		return onpath.Condition{}, false
	}
	return c.Status.Conditions[i], true
}

// names reports whether text has anything of the other tenant's chain.
func names(text string) bool {
	return slices.ContainsFunc([]string{"bob", "thief", "10.", "5"}, func(s string) bool { return strings.Contains(text, s) })
}

// TestTaken: a chain whose traffic another tenant's takes says so, once and without
// naming that one; the operator is told which it is. Later it says that this is over.
func TestTaken(t *testing.T) {
	s := twoTenants(t)
	if _, ok := isWhole(s.chain("acme", "web")); ok {
		t.Error("it says so without any other chain")
	}
	s.events = nil
	s.settle()
	s.pass(3e9)
	if c, _ := isWhole(s.chain("acme", "web")); c.Status != onpath.False || c.Reason != reasonAllTaken ||
		!strings.HasPrefix(c.Message, "all of its traffic is another tenant's") || names(c.Message) {
		t.Errorf("%+v", c)
	}
	if _, ok := isWhole(s.chain("bob", "thief")); ok {
		t.Error("the taker says that its traffic is taken")
	}
	var tenant, operator []Event
	for _, e := range s.events {
		switch {
		case e.Reason != reasonTaken && e.Reason != reasonAllTaken:
		case e.To == onpath.OperatorTenant:
			operator = append(operator, e)
		default:
			tenant = append(tenant, e)
		}
	}
	if len(tenant) != 1 || tenant[0].To != "" || tenant[0].About != onpath.KeyOf(s.chain("acme", "web")) || !tenant[0].Warning || names(tenant[0].Message) {
		t.Errorf("the tenant is told %+v", tenant)
	}
	if len(operator) != 1 || operator[0].About != onpath.KeyOf(s.chain("acme", "web")) ||
		operator[0].Message != "chain bob/thief takes everything from 10.1.0.0/24 to 10.9.0.2" {
		t.Errorf("the operator is told %+v", operator)
	}

	for _, c := range s.proveAll(t).Chains {
		if c.Chain == "acme/web" && (c.Verdict != onpath.VerdictIdle || !strings.HasPrefix(c.Reason, "nothing passes it")) {
			t.Errorf("verify: %+v", c)
		}
	}

	part := onpath.Clone(s.chain("bob", "thief"))
	part.Spec.From = onpath.Endpoints{Prefixes: prefixes("10.1.0.128/25")}
	s.apply(part)
	s.settle()
	s.pass(3e9)
	if c, _ := isWhole(s.chain("acme", "web")); c.Reason != reasonTaken || !strings.HasPrefix(c.Message, "part of its traffic") {
		t.Errorf("of a part: %+v", c)
	}

	off := onpath.Clone(s.chain("bob", "thief"))
	off.Spec.Disabled = true
	s.apply(off)
	s.settle()
	if c, _ := isWhole(s.chain("acme", "web")); c.Status != onpath.True {
		t.Errorf("once it is over: %+v", c)
	}
}

// TestNotTaken: what is no loss to another tenant.
func TestNotTaken(t *testing.T) {
	for name, change := range map[string]func(s *sim, thief *onpath.Chain){
		"a shorter prefix": func(s *sim, thief *onpath.Chain) {
			s.apply(aTenant("acme", "10.1.0.0/24"))
			thief.Spec.Priority = 9
		},
		"other traffic": func(s *sim, thief *onpath.Chain) {
			thief.Spec.From = onpath.Endpoints{Prefixes: prefixes("10.2.0.0/24")}
		},
		"does not run": func(s *sim, thief *onpath.Chain) { s.broken["thief-fwd"] = true },
		"its own": func(s *sim, thief *onpath.Chain) {
			s.remove(onpath.KindChain, "bob", "thief")
			thief.Metadata.Tenant = "acme"
		},
		"elsewhere": func(s *sim, thief *onpath.Chain) {
			s.site("ams1", 1, 1)
			thief.Spec.At.Cloudlets = []string{"ams1"}
			s.remove(onpath.KindChain, "acme", "web")
			web := aChain("acme", "web", through("fwd", 1))
			web.Spec.To, web.Spec.At.Cloudlets = onpath.Endpoints{Prefixes: prefixes("10.9.0.2")}, []string{"fra1"}
			s.apply(web)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := twoTenants(t)
			thief := onpath.Clone(s.chain("bob", "thief"))
			change(s, thief)
			s.apply(thief)
			s.settle()
			s.pass(2e9)
			if c, ok := isWhole(s.chain("acme", "web")); ok || !s.chain("acme", "web").Status.Active {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestTakenAgainstItsDirection: a chain takes what begins against its direction, too.
func TestTakenAgainstItsDirection(t *testing.T) {
	s := twoTenants(t)
	thief := onpath.Clone(s.chain("bob", "thief"))
	thief.Spec.From, thief.Spec.To = thief.Spec.To, thief.Spec.From
	s.apply(thief)
	s.settle()
	s.pass(3e9)
	if c, _ := isWhole(s.chain("acme", "web")); c.Status != onpath.False {
		t.Errorf("%+v", c)
	}
	forward := onpath.Clone(thief)
	forward.Spec.Direction = onpath.DirectionForward
	s.apply(forward)
	s.settle()
	s.pass(3e9)
	if c, _ := isWhole(s.chain("acme", "web")); c.Status != onpath.True {
		t.Errorf("of its direction only: %+v", c)
	}
}

// ownTaker settles a chain of priority 0 and another one of its tenant before it.
func ownTaker(t *testing.T, change func(first *onpath.Chain)) *sim {
	s := newSim(t, 1)
	s.site("fra1", 1, 2)
	web := aChain("acme", "web", through("fwd", 1))
	web.Spec.From, web.Spec.To = onpath.Endpoints{Prefixes: prefixes("10.1.0.0/24")}, onpath.Endpoints{Prefixes: prefixes("10.9.0.0/24")}
	s.apply(aTenant("acme"), web, aFunction("acme", "fwd", nil))
	s.settle()
	s.events = nil
	first := onpath.Clone(web)
	first.Metadata.Name, first.Spec.Priority = "first", 5
	change(first)
	s.apply(first)
	s.settle()
	s.pass(2e9)
	return s
}

// TestTakenByOwn: a chain whose traffic another one of its tenant has first says so, and
// whether that is all of it. Later it says that this is over.
func TestTakenByOwn(t *testing.T) {
	const before = "chain acme/first (priority 5) comes before this one (0) and takes "
	for name, c := range map[string]struct {
		change          func(first *onpath.Chain)
		reason, message string
	}{
		"all": {func(first *onpath.Chain) {}, reasonTakenByOwn, before + "all of its traffic"},
		"all and more": {func(first *onpath.Chain) {
			first.Spec.From, first.Spec.To = onpath.Endpoints{Any: true}, onpath.Endpoints{Any: true}
		},
			reasonTakenByOwn, before + "all of its traffic"},
		"a part": {func(first *onpath.Chain) { first.Spec.To.Prefixes = prefixes("10.9.0.2") }, reasonExceptions,
			before + "everything from 10.1.0.0/24 to 10.9.0.2"},
		"what begins against its direction": {func(first *onpath.Chain) { first.Spec.From, first.Spec.To = first.Spec.To, first.Spec.From },
			reasonTakenByOwn, before + "all of its traffic"},
		"only in its direction": {func(first *onpath.Chain) {
			first.Spec.From, first.Spec.To, first.Spec.Direction = first.Spec.To, first.Spec.From, onpath.DirectionForward
		}, "", ""},
		"other traffic":     {func(first *onpath.Chain) { first.Spec.To.Prefixes = prefixes("10.8.0.0/24") }, "", ""},
		"one that is later": {func(first *onpath.Chain) { first.Spec.Priority = -1 }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := ownTaker(t, c.change)
			is, ok := isWhole(s.chain("acme", "web"))
			if ok != (c.reason != "") || ok && (is.Status != onpath.False || is.Reason != c.reason || !strings.Contains(is.Message, c.message)) {
				t.Errorf("the condition is %+v", is)
			}
			if _, ok := isWhole(s.chain("acme", "first")); ok && c.message != "" {
				t.Error("the first says that its traffic is taken")
			}
			told := 0
			for _, e := range s.events {
				if e.Reason == c.reason && e.About == onpath.KeyOf(s.chain("acme", "web")) {
					if told++; !strings.Contains(e.Message, c.message) || e.Warning != (c.reason == reasonTakenByOwn) {
						t.Errorf("it tells %+v", e)
					}
				}
			}
			if ok && told != 1 {
				t.Errorf("it is told %d times", told)
			}
			off := onpath.Clone(s.chain("acme", "first"))
			off.Spec.Disabled = true
			s.apply(off)
			s.settle()
			if is, ok := isWhole(s.chain("acme", "web")); ok && is.Status != onpath.True {
				t.Errorf("once it is over: %+v", is)
			}
		})
	}
}

// BenchmarkTaken asks of each chain of many tenants that share all addresses who takes
// traffic of it.
func BenchmarkTaken(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := sharers(n)
			for b.Loop() {
				t := &teller{world: w}
				for _, c := range w.chains {
					if got, _ := t.takers(c, 1); len(got) > 0 {
						b.Fatalf("%s: %s", c.key, got)
					}
				}
			}
		})
	}
}

// sharers are n active chains of a hundred tenants, each to an address of its own.
func sharers(n int) *world {
	s := &Snapshot{Now: time.Unix(1e9, 0), Objects: map[onpath.Key]onpath.Object{}}
	add := func(list ...onpath.Object) {
		for _, o := range list {
			if err := o.Validate(); err != nil {
				panic(err)
			}
			s.Objects[onpath.KeyOf(o)] = o
		}
	}
	add(aCloudlet("fra1"), aNode("gw", "fra1", 1, true))
	for i := range 100 {
		owner := fmt.Sprintf("t%d", i)
		add(aTenant(owner, "0.0.0.0/0"), aFunction(owner, "fwd", nil))
		for k := range n / 100 {
			c := aChain(owner, fmt.Sprintf("c%d", k), through("fwd", 1))
			c.Spec.To = onpath.Endpoints{Prefixes: prefixes(fmt.Sprintf("10.%d.%d.%d", i, k/256, k%256))}
			c.Spec.Direction = onpath.DirectionForward
			add(c)
		}
	}
	w := newWorld(s)
	if len(w.chains) != n {
		panic(fmt.Sprint(len(w.chains), " chains"))
	}
	for _, c := range w.chains {
		c.span()
		c.active = true
	}
	return w
}

// TestMeetingOfAll: a look by addresses finds what a look at each chain finds, and counts
// what meets at one end.
func TestMeetingOfAll(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	spans := func() (out [2]span) {
		for v := range out {
			s := &out[v]
			s.some = random.IntN(4) > 0
			s.lo[15] = byte(random.IntN(200))
			s.hi[15] = s.lo[15] + byte(random.IntN(50))
		}
		return out
	}
	for range 300 {
		var list []*chain
		for i := range random.IntN(30) {
			list = append(list, &chain{rank: i, reach: spans(), origin: spans(), reverse: make([]onpath.Match, random.IntN(2))})
		}
		tree, c := newSpanTree(list), &chain{reach: spans(), origin: spans()}
		found := map[*chain]bool{}
		tree.meeting(c, func(o *chain) bool { found[o] = true; return true })
		n := 0
		for _, o := range list {
			if (c.mayMeet(o) || len(o.reverse) > 0 && c.mayFace(o)) && !found[o] {
				t.Fatalf("chain %d of %d is not found", o.rank, len(list))
			}
			if c.reach[0].meets(&o.reach[0]) {
				n++
			}
		}
		if got := tree.along.reach[0].count(&c.reach[0]); c.reach[0].some && got != n {
			t.Fatalf("%d spans meet, counted %d", n, got)
		}
	}
}
