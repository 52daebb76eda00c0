package plan

import (
	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/distribute"
)

// fill has instances that fill up weigh more in a path for as long as they do (Stratos §4.2,
// last paragraph).
func (w *world) fill(p *path) {
	x := p.chain.obj.Spec.Scaling
	if x == nil || x.Ramp <= 1 || len(w.Filling) == 0 {
		return
	}
	p.filling = make([]map[uint32]uint32, len(p.deps))
	for k := range p.deps {
		p.filling[k] = w.filled(p, k, int64(x.Ramp))
	}
}

// filled are the weights of an element's instances, by key; nil: as declared.
func (w *world) filled(p *path, k int, most int64) map[uint32]uint32 {
	var who []*instance
	var shares []int64
	var behind []bool
	any := false
	for _, i := range p.members[k] {
		share := p.weight(k, i, nil)
		if i.draining() || i.node == nil || share == 0 {
			continue
		}
		is := w.Filling[onpath.KeyOf(i.obj)]
		who, shares, behind, any = append(who, i), append(shares, int64(share)), append(behind, is), any || is
	}
	if !any {
		return nil
	}
	weights := map[uint32]uint32{}
	for at, x := range distribute.Raised(shares, behind, most, onpath.MaxRowWeight) {
		weights[who[at].obj.Spec.Key] = uint32(x)
	}
	return weights
}
