package metering

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/pool"
)

// TestPlaced: meters are of the instances that the server placed on their node, also once these
// are deleted; and of nothing else, whatever the node calls them.
func TestPlaced(t *testing.T) {
	m := New(Options{})
	created := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	in := &onpath.Instance{Spec: onpath.InstanceSpec{Deployment: "ids", Node: "n1"}}
	in.Metadata = onpath.Metadata{Tenant: "acme", Name: "ids-1", UID: "u1", Version: 2, Created: created}
	d := &onpath.Deployment{Spec: onpath.DeploymentSpec{Reservation: "evening"}}
	d.Metadata = onpath.Metadata{Tenant: "acme", Name: "ids", Version: 1}
	objects := map[onpath.Key]onpath.Object{}
	n := &onpath.Node{}
	n.Metadata.Name = "n1"
	nodeKey := onpath.Key{Kind: onpath.KindNode, Name: "n1"}
	inKey := onpath.Key{Kind: onpath.KindInstance, Tenant: "acme", Name: "ids-1"}
	objects[onpath.Key{Kind: onpath.KindDeployment, Tenant: "acme", Name: "ids"}], objects[inKey], objects[nodeKey] = d, in, n
	m.Note(objects, nil)
	said := []onpath.Meter{
		{UID: "u1", Tenant: "acme", Instance: "ids-1", Reservation: "another"},
		{UID: "u2", Tenant: "acme", Instance: "ids-1"}, {UID: "u3", Tenant: "acme", Instance: "ids-3"},
	}
	check := func(node string, want ...pool.Placed) {
		t.Helper()
		got := m.placed(node, said)
		if len(got) != len(want) || len(want) == 1 && got["u1"] != want[0] {
			t.Errorf("of %s are %+v, want %+v", node, got, want)
		}
	}
	x := pool.Placed{Node: "n1", Tenant: "acme", Instance: "ids-1", Reservation: "evening", Created: created}
	check("n1", x)
	check("n2")
	delete(objects, inKey)
	m.Note(objects, nil)
	check("n1", x)
	said[0].Tenant, said[0].Instance = "other", "ids-7"
	check("n1", x)
	check("n2")
	m.dropLeft("n1", []onpath.Meter{{UID: "u1"}})
	m.dropLeft("n2", nil)
	check("n1", x)
	if m.dropLeft("n1", nil); len(m.left) > 0 {
		t.Errorf("%d instances that left are kept, and their node meters none", len(m.left))
	}
	objects[inKey] = in
	m.Note(objects, nil)
	delete(objects, inKey)
	delete(objects, nodeKey)
	m.Note(objects, nil)
	check("n1")
}
