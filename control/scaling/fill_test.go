package scaling

import (
	"cmp"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestFillUp: a new instance with fewer packets than its part fills up until it has nine tenths
// of it, and not a second time; one that is old does not; nor without a ramp.
func TestFillUp(t *testing.T) {
	now := time.Unix(1_700_000_000, 0).UTC()
	c, objects := New(Options{}), map[onpath.Key]onpath.Object{}
	version := int64(0)
	put := func(o onpath.Object) onpath.Object {
		version++
		o.Meta().Version = version
		objects[onpath.KeyOf(o)] = o
		c.Note(objects, nil, nil)
		return o
	}
	node := &onpath.Node{TypeMeta: onpath.TypeMeta{Kind: onpath.KindNode}, Metadata: onpath.Metadata{Name: "n1"}}
	node.Spec.Cloudlet = "fra"
	put(node)
	chain := &onpath.Chain{TypeMeta: onpath.TypeMeta{Kind: onpath.KindChain}, Metadata: onpath.Metadata{Tenant: "default", Name: "web"}}
	chain.Spec.Through = []onpath.Element{{Function: "fw"}}
	chain.Spec.Scaling = &onpath.Scaling{Ramp: 2, Window: onpath.Duration(2 * time.Second), Elements: map[string]onpath.ElementScaling{"fw": {Max: 3}}}
	put(chain)
	instance := func(name string, since time.Time) onpath.Key {
		i := &onpath.Instance{TypeMeta: onpath.TypeMeta{Kind: onpath.KindInstance}, Metadata: onpath.Metadata{Tenant: "default", Name: name}}
		i.Spec.Deployment, i.Spec.Node = onpath.ShortDeployment("web", "fw"), "n1"
		i.Status.State, i.Status.Since = onpath.InstanceReady, since
		return onpath.KeyOf(put(i))
	}
	old, fresh := instance("old", now.Add(-time.Hour)), instance("new", now)
	given := map[onpath.Key]uint64{old: 5000, fresh: 0}
	second := func(toOld, toNew uint64) {
		now = now.Add(time.Second)
		given[old], given[fresh] = given[old]+toOld, given[fresh]+toNew
		r := round{at: now, instances: map[onpath.Key]uint64{old: given[old], fresh: given[fresh]}}
		c.usage.of = map[onpath.Key]*chainUsage{onpath.KeyOf(chain): cmp.Or(c.usage.of[onpath.KeyOf(chain)], &chainUsage{})}
		c.usage.add(r, map[onpath.Key]*onpath.Chain{onpath.KeyOf(chain): chain})
		fillUp(c, now)
	}
	is := func(what string, want, woken bool) {
		t.Helper()
		if got := c.filling[fresh]; got != want || c.filling[old] {
			t.Errorf("%s: it fills up: %v; all: %v", what, got, c.filling)
		}
		select {
		case <-c.changed:
			if !woken {
				t.Errorf("%s: it was planned anew", what)
			}
		default:
			if woken {
				t.Errorf("%s: it was not planned anew", what)
			}
		}
	}
	second(1000, 0)
	is("before nodes have heard of it", false, false)
	second(1000, 10)
	second(1000, 10)
	is("long flows stay where they are", true, true)
	second(700, 400)
	is("on the way", true, false)
	second(520, 480)
	is("it has its part", false, true)
	second(900, 100)
	is("later", false, false)

	c.filled = nil
	second(900, 100)
	is("another server, which knows no better", true, true)
	chain = onpath.Clone(chain)
	chain.Spec.Scaling.Ramp = 1
	put(chain)
	second(900, 100)
	is("without a ramp", false, true)
	chain = onpath.Clone(chain)
	chain.Spec.Scaling.Ramp = 2
	put(chain)
	now = now.Add(fillsFor)
	second(900, 100)
	second(900, 100)
	is("it is not new any more", false, false)
}
