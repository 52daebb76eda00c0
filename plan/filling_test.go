package plan

import (
	"maps"
	"slices"
	"testing"

	"github.com/onpath/onpath"
)

// TestFilling: an instance that fills up gets twice its share of new flows in a chain that
// scales, in uniform and network distribution, and its share once it has filled up.
func TestFilling(t *testing.T) {
	for _, d := range []onpath.Distribution{onpath.DistributionUniform, onpath.DistributionNetwork} {
		s := figure7(t, d)
		fills := s.instances("web-re")[1]
		for _, c := range []struct {
			scales, filling bool
			want            float64
		}{{false, true, 0.25}, {true, false, 0.25}, {true, true, 0.5}, {true, false, 0.25}} {
			o := onpath.Clone(s.chain("default", "web"))
			o.Spec.Scaling, s.filling = nil, nil
			if c.scales {
				o.Spec.Scaling = &onpath.Scaling{Ramp: 2, Elements: map[string]onpath.ElementScaling{"re": {Min: 1, Max: 4, Cost: 1}}}
			}
			if c.filling {
				s.filling = map[onpath.Key]bool{onpath.KeyOf(fills): true}
			}
			s.apply(o)
			s.settle()
			if got := s.shareOf(fills); got < c.want-0.01 || got > c.want+0.01 {
				t.Errorf("%s, %+v: it gets %.3f of the new flows", d, c, got)
			}
		}
	}
}

// shareOf is what an instance gets of the new flows that other elements' instances, or the
// gateway, send to its element.
func (s *sim) shareOf(i *onpath.Instance) (share float64) {
	senders := 0
	for _, name := range slices.Sorted(maps.Keys(s.states)) {
		for _, g := range s.states[name].Acked.Datapath.Groups {
			at := slices.IndexFunc(g.Members, func(m onpath.Member) bool { return m.Vport == i.Spec.Vport })
			if _, _, reverse := g.ID.Split(); reverse || at < 0 {
				continue
			}
			rows := [][]uint32{}
			for _, r := range g.Weights {
				rows = append(rows, r.Weights)
			}
			if len(rows) == 0 {
				row := make([]uint32, len(g.Members))
				for k, m := range g.Members {
					row[k] = m.Weight
				}
				rows = append(rows, row)
			}
			for _, row := range rows {
				var sum uint32
				for _, w := range row {
					sum += w
				}
				share += float64(row[at]) / float64(sum)
				senders++
			}
		}
	}
	return share / float64(senders)
}
