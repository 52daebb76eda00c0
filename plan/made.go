package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/onpath/onpath"
)

// maker says of which kinds the objects are that onpath makes for one of another kind, and
// which label on them names that one.
type maker struct {
	of    onpath.Kind
	label string
	makes []onpath.Kind
}

var (
	ofAccelerators = maker{of: onpath.KindAccelerator, label: onpath.AcceleratorLabel,
		makes: []onpath.Kind{onpath.KindFunction, onpath.KindDeployment, onpath.KindChain}}
	ofServices = maker{of: onpath.KindService, label: onpath.ServiceLabel, makes: []onpath.Kind{onpath.KindChain}}
)

// made reports whether the object is one that onpath made.
func (m maker) made(o onpath.Object) bool {
	return slices.Contains(m.makes, onpath.KeyOf(o).Kind) && o.Meta().Labels[m.label] != ""
}

// writeMade has objects that stand for others be as they are wanted; those that onpath
// made, and that are not wanted any more, go.
func writeMade(w *world, by maker, want map[onpath.Key]onpath.Object) {
	var made []onpath.Key
	for k, o := range w.Objects {
		if by.made(o) {
			made = append(made, k)
		}
	}
	sortKeys(made)
	for _, k := range made {
		have := w.Objects[k]
		next, ok := want[k]
		switch delete(want, k); {
		case !ok:
			w.res.Delete = append(w.res.Delete, k)
		case !sameSpec(have, next):
			w.update(withSpec(have, next))
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(want), func(x, y onpath.Key) int { return cmp.Compare(x.String(), y.String()) }) {
		if _, taken := w.Objects[k]; !taken { // a user's own object of that name stays
			w.res.Own = append(w.res.Own, want[k])
		}
	}
}

// checkMade refuses labels by which users' objects would pass for what onpath made, and
// go with it.
func checkMade(before, after *Snapshot, changed []onpath.Key) (errs onpath.Errors) {
	for _, k := range changed {
		o := after.Objects[k]
		if o == nil {
			continue
		}
		for _, by := range []maker{ofAccelerators, ofServices} {
			had := before.Objects[k]
			if by.made(o) && (had == nil || had.Meta().Labels[by.label] != o.Meta().Labels[by.label]) {
				errs = append(errs, fault(o, onpath.CodeInvalid, "metadata.labels["+by.label+"]",
					"take the label out; leave the object out where onpath made it, which it does anew",
					"the label marks what onpath makes for a %s", by.of))
			}
		}
	}
	return errs
}
