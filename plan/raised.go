package plan

import (
	"slices"

	"github.com/onpath/onpath"
)

// checkRaised refuses resources that are raised beyond what the nodes have where the
// instances run: these are not made anew, so nobody looks for a place for them.
func (w checker) checkRaised() (errs onpath.Errors) {
	for _, i := range w.instances {
		if i.draining() || i.node == nil || i.d == nil || i.d.function == nil || i.planned == nil || i.obj.Spec.Shape != i.d.shape {
			continue
		}
		f, now := i.d.function, i.d.spec.Resources
		if !w.changed[onpath.KeyOf(f)] || i.planned.Spec.Resources.Fits(now) {
			continue
		}
		why := w.lacks(i.d, i.node, now) // what is used has its share already
		if why == "" || slices.ContainsFunc(errs, func(e *onpath.Error) bool { return e.Object == onpath.KeyOf(f).String() }) {
			continue
		}
		errs = append(errs, fault(f, onpath.CodeNoCapacity, "spec.resources",
			"ask for less, or give the node room: fewer instances, or onpath drain moves some",
			"node %s, where instances of deployment %s run, %s with that", i.node.name, i.d.key, why))
	}
	return errs
}
