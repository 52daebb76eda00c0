package plan

import (
	"testing"

	"github.com/onpath/onpath"
)

// TestLent: what leases may have of a node, no instance and no reservation is given.
func TestLent(t *testing.T) {
	capacity := onpath.Resources{CPU: 2000, Memory: 1 << 30}
	for what, c := range map[string]struct {
		leases *onpath.LeasesSpec
		need   onpath.CPU
		lacks  bool
		sold   onpath.CPU
	}{
		"no leases":               {nil, 2000, false, 2000},
		"beside half of it":       {&onpath.LeasesSpec{Share: 0.5}, 1000, false, 1000},
		"more than is left":       {&onpath.LeasesSpec{Share: 0.5}, 1001, true, 1000},
		"all is lent":             {&onpath.LeasesSpec{Share: 1}, 1, true, 1}, // 0 would say that it is not known
		"nothing is put in force": {&onpath.LeasesSpec{Share: 1, DryRun: true}, 2000, false, 2000},
	} {
		n := &node{name: "n", c: &cloudlet{}, obj: &onpath.Node{Spec: onpath.NodeSpec{Capacity: capacity, Leases: c.leases}}}
		d := &deployment{functionOf: functionOf{spec: onpath.FunctionSpec{Resources: onpath.Resources{CPU: c.need}}}}
		w := &world{Snapshot: &Snapshot{}}
		if why := w.lacks(d, n, onpath.Resources{}); (why != "") != c.lacks {
			t.Errorf("%s: %q", what, why)
		}
		if got := Capacity(n.obj, nil); got.CPU != c.sold {
			t.Errorf("%s: %s of CPU can be reserved, want %s", what, got.CPU, c.sold)
		}
	}
}
