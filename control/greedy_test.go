package control_test

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// provider is a site with ordinary tenants: each has two chains that scale and a claim that is
// proved, with settings as they are by default, and makes a change a minute.
type provider struct {
	*site
	second    []func(at int) // what is done each second
	at        int
	cloudlets int
}

// costs are what a server has done, and what it holds, after some minutes.
type costs struct {
	calls, plans int64
	bytes        uint64
}

// TestGreedyTenant: a tenant with twice as much as an ordinary one, and with each setting at its
// worst, has nodes called, plans made and memory held by at most a fifth more than they are
// without it.
func TestGreedyTenant(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes a minute of processor time")
	}
	for _, of := range []struct{ nodes, tenants int }{{200, 60}, {100, 20}} {
		without, with := costsOf(t, of.nodes, of.tenants, false), costsOf(t, of.nodes, of.tenants, true)
		t.Logf("%+v: without the tenant %+v; with it %+v", of, without, with)
		for what, x := range map[string][2]float64{
			"calls of nodes": {float64(without.calls), float64(with.calls)},
			"plans made":     {float64(without.plans), float64(with.plans)},
			"bytes held":     {float64(without.bytes), float64(with.bytes)},
		} {
			if ratio := x[1] / x[0]; ratio > 1.2 {
				t.Errorf("%+v: %s: %.2f times as many", of, what, ratio)
			}
		}
	}
}

// costsOf counts two minutes of virtual time.
func costsOf(t *testing.T, nodes, tenants int, greedy bool) (sum costs) {
	synctest.Test(t, func(t *testing.T) {
		s := &provider{site: newSite(t), cloudlets: nodes / 10}
		defer s.stop()
		var calls, plans atomic.Int64
		by := map[onpath.NodeOp]int{}
		s.called = func(op onpath.NodeOp) { calls.Add(1); by[op]++ }
		planner := new(plan.Planner)
		s.c.PlanBy(func(x *plan.Snapshot) *plan.Result {
			plans.Add(1)
			return planner.Make(x)
		})
		for i := range byte(nodes) {
			s.join(fmt.Sprintf("n%d", i), fmt.Sprintf("c%d", i/10), 10+i, i%10 == 0)
		}
		s.lead(2 * time.Second)
		for i := range tenants {
			s.ordinary(fmt.Sprintf("t%d", i), i)
		}
		if greedy {
			s.greedy("greedy", tenants)
		}
		s.pass(time.Minute) // until all that begins has begun
		calls.Store(0)
		clear(by)
		plans.Store(0)
		s.pass(2 * time.Minute)
		t.Logf("by operation: %v", by)
		sum.calls, sum.plans = calls.Load(), plans.Load()
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		sum.bytes = m.HeapAlloc
	})
	return sum
}

func (s *provider) pass(d time.Duration) {
	for range int(d / time.Second) {
		for _, f := range s.second {
			f(s.at)
		}
		for _, n := range s.nodes {
			n.report()
		}
		s.at++
		time.Sleep(time.Second)
	}
}

// prefixOf is of the i-th address of tenant n.
func prefixOf(n, i, bits int) onpath.Prefix {
	return onpath.Prefix{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n), 0, byte(i)}), bits)}
}

func (s *provider) tenant(name string, n int) {
	o := object[*onpath.Tenant](onpath.KindTenant, "", name)
	o.Spec.Addresses = []onpath.Prefix{prefixOf(n, 0, 16)}
	f := function("fw")
	f.Metadata.Tenant, f.Spec.Container.Image = name, "registry.example/fw:1"
	s.apply(o, f)
}

// scales makes a chain that is not applied yet.
func (s *provider) scales(tenant string, n, i int) *onpath.Chain {
	one := 1
	o := object[*onpath.Chain](onpath.KindChain, tenant, fmt.Sprintf("web%d", i))
	o.Spec.From, o.Spec.To = onpath.Endpoints{Any: true}, onpath.Endpoints{Prefixes: []onpath.Prefix{prefixOf(n, i, 32)}}
	o.Spec.At.Cloudlets = []string{fmt.Sprintf("c%d", n%s.cloudlets)}
	o.Spec.Through = []onpath.Element{{Function: "fw", Instances: &one}}
	o.Spec.Scaling = &onpath.Scaling{Elements: map[string]onpath.ElementScaling{"fw": {Max: 3}}}
	return o
}

// claims applies a claim, whose address then shows its password.
func (s *provider) claims(tenant string, n, i int, lasts time.Duration) {
	o := object[*onpath.PrefixClaim](onpath.KindPrefixClaim, tenant, fmt.Sprintf("site%d", i))
	o.Spec.Prefix, o.Spec.Method, o.Spec.For = prefixOf(n, i, 32), onpath.ByPassword, onpath.Duration(lasts)
	s.apply(o)
	s.second = append(s.second, func(int) {
		now, err := s.store.Get(s.t.Context(), onpath.KeyOf(o))
		if err != nil {
			s.t.Fatal(err)
		}
		s.show(o.Spec.Prefix.Addr().String(), now.(*onpath.PrefixClaim).Status.Password)
	})
}

func (s *provider) push(o onpath.Object, value float64) {
	_ = s.c.PushMetric(s.t.Context(), onpath.KeyOf(o), value, time.Time{})
}

func (s *provider) ordinary(name string, n int) {
	s.tenant(name, n)
	for i := range 2 {
		o := s.scales(name, n, i)
		s.apply(o)
		s.second = append(s.second, func(at int) { s.push(o, 100+float64(at%7)) })
	}
	s.claims(name, n, 9, 0)
	s.second = append(s.second, func(at int) {
		if at%60 == n {
			o := s.scales(name, n, 0)
			o.Spec.Priority = at / 60
			s.apply(o)
		}
	})
}

// greedy is a tenant with the shortest times, values that change all the while, and watchers that
// do not read. Each instance of its chains helps, and half a minute later none does.
func (s *provider) greedy(name string, n int) {
	s.tenant(name, n)
	for i := range 4 {
		o := s.scales(name, n, i)
		x := o.Spec.Scaling
		x.Window, x.Cooldown, x.Improve, x.Ramp = onpath.MinWindow, 1, 0.001, onpath.MaxRamp
		o.Spec.Disabled = i == 3
		s.apply(o)
		s.second = append(s.second, func(at int) {
			value := 50.0
			now, err := s.store.Get(s.t.Context(), onpath.KeyOf(o))
			if err != nil {
				s.t.Fatal(err)
			}
			if list := now.(*onpath.Chain).Status.Elements; at/30%2 == 0 && len(list) > 0 {
				value = 100 * float64(list[0].Ready)
			}
			for k := range 10 {
				s.push(o, value+float64(k)/10)
				time.Sleep(time.Millisecond)
			}
		})
	}
	for i := range 2 {
		s.claims(name, n, 100+i, time.Duration(onpath.MinClaimLife))
	}
	for range 20 {
		if _, err := s.store.Watch(s.t.Context(), 0, nil); err != nil {
			s.t.Fatal(err)
		}
	}
}
