package plan

import (
	"reflect"
	"slices"

	"github.com/onpath/onpath"
)

// News reports whether planning may come to another result by a node's report than by
// the one before. Of flows that drain the planner asks whether there are any, not how
// many.
func News(old, next *onpath.NodeReport) bool {
	if old == nil || !slices.EqualFunc(old.Instances, next.Instances, sameInstanceReport) || len(old.Paths) != len(next.Paths) {
		return true
	}
	for id, flows := range next.Paths {
		if had, ok := old.Paths[id]; !ok || (had > 0) != (flows > 0) {
			return true
		}
	}
	a, b := *old, *next
	a.Instances, a.Paths, b.Instances, b.Paths = nil, nil, nil, nil
	return !reflect.DeepEqual(&a, &b)
}

func sameInstanceReport(a, b onpath.InstanceReport) bool {
	a.Flows, b.Flows = min(a.Flows, 1), min(b.Flows, 1)
	return reflect.DeepEqual(&a, &b)
}
