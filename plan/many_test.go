package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// BenchmarkManyChains plans where nothing changes: a chain for each destination, through
// two deployments that all share.
func BenchmarkManyChains(b *testing.B) {
	for _, n := range []int{1000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := many(n)
			b.ResetTimer()
			for range b.N {
				Make(s)
			}
		})
	}
}

func many(n int) *Snapshot {
	s := &Snapshot{Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Objects: map[onpath.Key]onpath.Object{}, States: map[string]*NodeState{}, Settings: Settings{Secret: []byte("s")}}
	add := func(list ...onpath.Object) {
		for _, o := range list {
			if err := o.Validate(); err != nil {
				panic(err)
			}
			o.Meta().Created = s.Now
			s.Objects[onpath.KeyOf(o)] = o
		}
	}
	add(aCloudlet("fra1"), aFunction("default", "fw", nil), aDeployment("default", "a", "fw", 2), aDeployment("default", "b", "fw", 2))
	for i, name := range []string{"gw", "n1", "n2"} {
		add(aNode(name, "fra1", i+1, i == 0))
		s.States[name] = &NodeState{Seen: s.Now, Report: &onpath.NodeReport{Node: name, Capacity: onpath.Resources{CPU: 8000, Memory: 8 << 30}, UnderlayMTU: 1500}}
	}
	for i := range n {
		c := aChain("default", fmt.Sprintf("c%d", i), onpath.Element{Deployment: "a"}, onpath.Element{Deployment: "b"})
		c.Spec.To = onpath.Endpoints{Prefixes: prefixes(fmt.Sprintf("198.18.%d.%d", i/256, i%256))}
		add(c)
	}
	for i := range 6000 {
		s.IDs.Vports = append(s.IDs.Vports, onpath.VportID(i+1))
		s.IDs.Addresses = append(s.IDs.Addresses, uint64(i+1))
		s.IDs.Paths = append(s.IDs.Paths, onpath.PathID(i+1))
	}
	for range 12 {
		if !carryOut(s, Make(s)) {
			break
		}
	}
	return s
}
