package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// figure7 is Stratos' Figure 7: three instances before four, in two racks.
func figure7(t *testing.T, d onpath.Distribution) *sim {
	s := newSim(t, 7)
	s.site("fra1", 1, 7)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	s.apply(gw, aFunction("default", "ips", nil), aFunction("default", "re", nil))
	for i := range 7 {
		n := onpath.Clone(s.node(fmt.Sprintf("fra1-n%d", i+1)))
		rack, role := "a", "ips"
		if i == 2 || i >= 5 {
			rack = "b"
		}
		if i >= 3 {
			role = "re"
		}
		n.Metadata.Labels = map[string]string{"rack": rack, "role": role}
		s.apply(n)
	}
	c := aChain("default", "web", through("ips", 3), through("re", 4))
	for i, role := range []string{"ips", "re"} {
		c.Spec.Through[i].Place = onpath.Place{Spread: onpath.SpreadNode, Nodes: map[string]string{"role": role}}
	}
	c.Spec.Distribution = d
	s.apply(c)
	s.settle()
	s.pass(3 * time.Second)
	return s
}

// TestNetworkDistribution: a sixth of the flows goes from rack to rack in Figure 7, in
// both directions alike, everybody gets a share, and nobody is out of reach.
func TestNetworkDistribution(t *testing.T) {
	s := figure7(t, onpath.DistributionNetwork)
	for _, reverse := range []bool{false, true} {
		crossing, got, senders := 0.0, map[string]float64{}, 0
		from, to := "web-ips", "web-re"
		if reverse {
			from, to = to, from
		}
		for i := range 7 {
			node := fmt.Sprintf("fra1-n%d", i+1)
			for _, row := range s.rows(from, node, to, reverse) {
				senders++
				var sum uint32
				for _, w := range row {
					sum += w
				}
				for n, w := range row {
					if w == 0 {
						t.Errorf("reverse %v: nothing goes from %s to %s, even if all others are lost", reverse, node, n)
					}
					got[n] += float64(w) / float64(sum)
					if s.node(n).Metadata.Labels["rack"] != s.node(node).Metadata.Labels["rack"] {
						crossing += float64(w) / float64(sum)
					}
				}
			}
		}
		if want := map[bool]int{false: 3, true: 4}[reverse]; senders != want {
			t.Fatalf("reverse %v: %d instances have rows, must be %d", reverse, senders, want)
		}
		if part := crossing / float64(senders); part < 0.166 || part > 0.167 {
			t.Errorf("reverse %v: %.4f of the flows go from rack to rack, must be a sixth", reverse, part)
		}
		for n, x := range got {
			if share := x / float64(senders) * float64(len(got)); share < 0.999 || share > 1.001 {
				t.Errorf("reverse %v: %s gets %.4f of its share", reverse, n, share)
			}
		}
	}
	if got := figure7(t, onpath.DistributionUniform).rows("web-ips", "fra1-n1", "web-re", false); len(got) != 0 {
		t.Errorf("uniform has rows: %v", got)
	}
}

// TestNewInstanceByRack: a new instance comes where the fewest flows then go from rack to
// rack.
func TestNewInstanceByRack(t *testing.T) {
	s := newSim(t, 9)
	s.site("fra1", 1, 6)
	gw := onpath.Clone(s.node("fra1-gw"))
	gw.Spec.Schedulable = new(bool)
	s.apply(gw, aFunction("default", "ips", nil), aFunction("default", "re", nil))
	for i := range 6 {
		n := onpath.Clone(s.node(fmt.Sprintf("fra1-n%d", i+1)))
		rack := []string{"a", "a", "b", "b", "c", "c"}[i]
		n.Metadata.Labels = map[string]string{"rack": rack}
		if i == 2 {
			n.Metadata.Labels["role"] = "ips"
		}
		s.apply(n)
	}
	c := aChain("default", "web", through("ips", 1), through("re", 1))
	c.Spec.Through[0].Place.Nodes = map[string]string{"role": "ips"}
	c.Spec.Distribution = onpath.DistributionNetwork
	s.apply(c)
	s.settle()
	for n := 1; n <= 2; n++ { // rack b has so many nodes, and spread: node comes first
		c = onpath.Clone(s.chain("default", "web"))
		c.Spec.Through[1].Instances = &n
		s.apply(c)
		s.settle()
		for _, i := range s.instances("web-re") {
			if rack := s.node(i.Spec.Node).Metadata.Labels["rack"]; rack != "b" {
				t.Errorf("with %d instances %s is in rack %s, and all that it gets comes from rack b", n, i.Metadata.Name, rack)
			}
		}
	}
}
