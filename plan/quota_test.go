package plan

import (
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestQuotas: what makes a tenant grow over its quota is refused, and nothing else is.
func TestQuotas(t *testing.T) {
	for name, c := range map[string]struct {
		quota onpath.Quota
		add   onpath.Object
		field string // empty: allowed
	}{
		"a chain":               {onpath.Quota{Chains: 1}, aChain("bob", "more", through("fwd", 1)), "spec.quota.chains"},
		"a chain within":        {onpath.Quota{Chains: 2}, aChain("bob", "more", through("fwd", 1)), ""},
		"another tenant's":      {onpath.Quota{Chains: 1}, aChain("acme", "web", through("fwd", 1)), ""},
		"a claim":               {onpath.Quota{Claims: 1}, aClaim("bob", "two", "10.9.0.9", "", s0, s0), "spec.quota.claims"},
		"instances of a chain":  {onpath.Quota{Instances: 3}, aChain("bob", "more", through("fwd", 3)), "spec.quota.instances"},
		"instances within":      {onpath.Quota{Instances: 5}, aChain("bob", "more", through("fwd", 3)), ""},
		"scaling to":            {onpath.Quota{Instances: 3}, scaling(1, 2), "spec.quota.instances"},
		"scaling within":        {onpath.Quota{Instances: 3}, scaling(1, 1), ""},
		"of a deployment":       {onpath.Quota{Instances: 3}, aDeployment("bob", "d", "fwd", 9), "spec.quota.instances"},
		"processors":            {onpath.Quota{Capacity: onpath.Resources{CPU: 250}}, aChain("bob", "more", through("fwd", 2)), "spec.quota.capacity.cpu"},
		"an object":             {onpath.Quota{Objects: 3}, aChain("bob", "more", through("fwd", 1)), "spec.quota.objects"},
		"objects within":        {onpath.Quota{Objects: 4}, aChain("bob", "more", through("fwd", 1)), ""},
		"bytes":                 {onpath.Quota{Bytes: 100}, aChain("bob", "more", through("fwd", 1)), "spec.quota.bytes"},
		"bytes within":          {onpath.Quota{Bytes: 1 << 20}, aChain("bob", "more", through("fwd", 1)), ""},
		"a change that shrinks": {onpath.Quota{Instances: 1}, aChain("bob", "web", through("fwd", 1)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, 1)
			s.site("fra1", 1, 2)
			bob := aTenant("bob")
			bob.Spec.Quota = &c.quota
			size := func(f *onpath.FunctionSpec) { f.Resources.CPU = 100 }
			s.apply(bob, aTenant("acme"), aFunction("bob", "fwd", size), aFunction("acme", "fwd", nil), aClaim("bob", "one", "10.9.0.8", "", s0, s0),
				aChain("bob", "web", through("fwd", 2)))
			before := s.snapshot()
			after := *before
			after.Objects = flatCopy(s)
			if p, ok := c.add.(*onpath.Chain); ok && p.Metadata.Name == "more" {
				p.Spec.To = onpath.Endpoints{Prefixes: prefixes("198.51.100.11")}
			}
			if d, ok := c.add.(*onpath.Deployment); ok {
				d.Spec.Place.Cloudlets = []string{"fra1"}
			}
			if err := c.add.Validate(); err != nil {
				t.Fatal(err)
			}
			after.Objects[onpath.KeyOf(c.add)] = c.add
			err := CheckChange(before, &after, []onpath.Key{onpath.KeyOf(c.add)})
			switch {
			case c.field == "" && err != nil:
				t.Error(err)
			case c.field != "" && (err == nil || !strings.Contains(err.Error(), c.field)):
				t.Errorf("want %s, got %v", c.field, err)
			}
		})
	}
}

// TestQuotaByDefault: a tenant whose quota says nothing of objects and bytes has the default
// ones; what it has beyond them stays, may shrink, and does not grow.
func TestQuotaByDefault(t *testing.T) {
	long := func(name string, bytes int) *onpath.Function {
		return aFunction("bob", name, func(f *onpath.FunctionSpec) { f.Container.Env = onpath.Env{"F": strings.Repeat("x", bytes)} })
	}
	const large = 900_000
	fits := int(onpath.DefaultBytes) / large
	for name, c := range map[string]struct {
		had    int // functions of large bytes
		small  int // functions of few
		quota  *onpath.Quota
		tenant string
		change *onpath.Function // nil: the first one is deleted
		field  string           // empty: allowed
	}{
		"below":                 {fits - 1, 0, nil, "bob", long("new", large), ""},
		"over":                  {fits, 0, nil, "bob", long("new", large), "spec.quota.bytes of tenant bob"},
		"over, of another part": {fits, 0, &onpath.Quota{Chains: 1}, "bob", long("new", large), "spec.quota.bytes of tenant bob"},
		"as the operator says":  {fits, 0, &onpath.Quota{Bytes: 1 << 40}, "bob", long("new", large), ""},
		"the operator's":        {fits, 0, nil, onpath.OperatorTenant, long("new", large), ""},
		"shrinks":               {fits + 3, 0, nil, "bob", long("f0", large/2), ""},
		"grows":                 {fits + 3, 0, nil, "bob", long("f0", large+1), "spec.quota.bytes of tenant bob"},
		"goes":                  {fits + 3, 0, nil, "bob", nil, ""},
		"many":                  {0, onpath.DefaultObjects, nil, "bob", long("new", 1), "spec.quota.objects of tenant bob"},
		"many, and one changes": {1, onpath.DefaultObjects, nil, "bob", long("f0", 1), ""},
	} {
		bob := aTenant(c.tenant)
		bob.Spec.Quota = c.quota
		before := &Snapshot{Objects: map[onpath.Key]onpath.Object{onpath.KeyOf(bob): bob}}
		put := func(s *Snapshot, f *onpath.Function) onpath.Key {
			f.Metadata.Tenant = c.tenant
			s.Objects[onpath.KeyOf(f)] = f
			return onpath.KeyOf(f)
		}
		for i := range c.had {
			put(before, long("f"+strconv.Itoa(i), large))
		}
		for i := range c.small {
			put(before, long("s"+strconv.Itoa(i), 1))
		}
		after := &Snapshot{Objects: maps.Clone(before.Objects)}
		k := onpath.Key{Kind: onpath.KindFunction, Tenant: c.tenant, Name: "f0"}
		if c.change != nil {
			k = put(after, c.change)
		} else {
			delete(after.Objects, k)
		}
		switch err := checkQuotas(before, after, []onpath.Key{k}).Err(); {
		case c.field == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.field != "" && (err == nil || !strings.Contains(err.Error(), c.field)):
			t.Errorf("%s: want %s, got %v", name, c.field, err)
		}
	}
}

func scaling(n, most int) *onpath.Chain {
	c := aChain("bob", "more", through("fwd", n))
	c.Spec.Scaling = &onpath.Scaling{Elements: map[string]onpath.ElementScaling{"fwd": {Max: most}}}
	return c
}

var s0 = time.Time{}
