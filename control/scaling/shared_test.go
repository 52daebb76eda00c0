package scaling

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/scale"
)

// TestSharedDeployment: what scales a deployment that several chains use obeys the bounds and
// budgets of all, in every cloudlet in which its instances are; and a number that could not be
// written yet is no other chain's decision.
func TestSharedDeployment(t *testing.T) {
	now := time.Unix(1_700_000_000, 0).UTC()
	c, objects := New(Options{}), map[onpath.Key]onpath.Object{}
	version := int64(0)
	put := func(o onpath.Object) {
		version++
		o.Meta().Version = version
		objects[onpath.KeyOf(o)] = o
		c.Note(objects, nil, nil)
	}
	for _, n := range []string{"fra", "ber"} {
		node := &onpath.Node{TypeMeta: onpath.TypeMeta{Kind: onpath.KindNode}, Metadata: onpath.Metadata{Name: n}}
		node.Spec.Cloudlet = n
		put(node)
		for _, name := range []string{"a", "b"} {
			i := &onpath.Instance{TypeMeta: onpath.TypeMeta{Kind: onpath.KindInstance}, Metadata: onpath.Metadata{Tenant: "default", Name: n + name}}
			i.Spec.Deployment, i.Spec.Node, i.Status.State = "ids", n, onpath.InstanceReady
			put(i)
		}
	}
	two := 2
	d := &onpath.Deployment{TypeMeta: onpath.TypeMeta{Kind: onpath.KindDeployment}, Metadata: onpath.Metadata{Tenant: "default", Name: "ids"}}
	d.Spec.Instances = &two
	put(d)
	chain := func(name string, e onpath.ElementScaling, budget int) *onpath.Chain {
		o := &onpath.Chain{TypeMeta: onpath.TypeMeta{Kind: onpath.KindChain}, Metadata: onpath.Metadata{Tenant: "default", Name: name}}
		o.Spec.Through = []onpath.Element{{Deployment: "ids"}}
		o.Spec.Scaling = &onpath.Scaling{
			Window: onpath.Duration(20 * time.Second), Improve: onpath.DefaultImprove, Budget: budget,
			Elements: map[string]onpath.ElementScaling{"ids": e},
		}
		o.Status.Active, o.Status.Cloudlets = true, []string{"fra"}
		put(o)
		return o
	}
	web := chain("web", onpath.ElementScaling{Min: 1, Max: 9, Cost: 1}, 0)
	view := func() scale.Element {
		chains := c.scalingChains()
		c.users, c.scaled = usersOf(chains), map[onpath.Key]*scaled{}
		for k, o := range chains {
			c.scaled[k] = newScaled(k, o, now)
		}
		return c.scaleView(onpath.KeyOf(web), web, c.scaled[onpath.KeyOf(web)], chains, now).Elements[0]
	}
	is := func(what string, least, most int) {
		t.Helper()
		if e := view(); e.Cloudlets != 2 || e.Now != 2 || e.Min != least || e.Max != most {
			t.Errorf("%s: %d cloudlets, %d instances of %d to %d, want 2 of %d to %d", what, e.Cloudlets, e.Now, e.Min, e.Max, least, most)
		}
	}
	is("alone", 1, 9)
	chain("mail", onpath.ElementScaling{Min: 2, Max: 6, Cost: 3}, 0)
	is("another chain's bounds", 2, 6)
	chain("mail", onpath.ElementScaling{Min: 1, Max: 6, Cost: 3}, 29)
	is("its budget has 17 left, of which an instance in both cloudlets takes 6", 1, 4)
	chain("mail", onpath.ElementScaling{Min: 1, Max: 6, Cost: 3}, 12)
	is("its budget is spent", 1, 2)

	chains := c.scalingChains()
	k := onpath.KeyOf(web)
	x := c.scaled[k]
	decided := func(n int) int {
		c.scaleChain(k, web, x, chains, now)
		x.scaler.Status.Wanted["ids"] = n
		c.scaleChain(k, web, x, chains, now)
		return x.scaler.Status.Wanted["ids"]
	}
	if n := decided(1); n != 1 {
		t.Errorf("a decision that is not written yet: %d instances, not 1", n)
	}
	d = onpath.Clone(d)
	one := 1
	d.Status.Scaled = &one
	put(d) // the other chain's decision
	x.scaler.Status.Wanted["ids"] = 2
	c.scaleChain(k, web, x, chains, now)
	if n := x.scaler.Status.Wanted["ids"]; n != 1 {
		t.Errorf("another chain has decided: %d instances, not 1", n)
	}
}
