package control

import (
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// TestIDsUsedAgain: past the end of their range, ids that nobody uses come again, once all
// nodes have said what they hold; where all are in use, that is said.
func TestIDsUsedAgain(t *testing.T) {
	m, sessions := newMirror(), map[string]*session{}
	chain := &onpath.Chain{Status: onpath.ChainStatus{Path: 2}}
	chain.Metadata = onpath.Metadata{Tenant: "default", Name: "web", Version: 1}
	node := &onpath.Node{}
	node.Metadata = onpath.Metadata{Name: "n1", Version: 1}
	m.put(chain)
	m.put(node)
	take := func(n int, last uint64) ([]uint64, error) {
		return idsFrom(last, n, last, "path", awaited(m, sessions), func() map[uint64]bool { return pathsInUse(m, sessions, []onpath.PathID{5}) })
	}

	if ids, err := take(1, 7); err != nil || !slices.Equal(ids, []uint64{7}) {
		t.Errorf("the last id of the range: %v, %v", ids, err)
	}
	ids, err := take(3, 7)
	if onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), "n1") || len(ids) > 1 {
		t.Errorf("while a node is away: %v, %v", ids, err)
	}
	plans := plan.NodeState{Sent: []*onpath.NodePlan{{Datapath: onpath.DatapathConfig{Paths: []onpath.Path{{ID: 3}}}}}}
	sessions["n1"] = &session{state: plans}
	if ids, err := take(4, 7); err != nil || !slices.Equal(ids, []uint64{7, 1, 4, 6}) {
		t.Errorf("the ids that nobody uses are %v, %v", ids, err)
	}
	if ids, err := idsFrom(8, 1, 3, "path", nil, func() map[uint64]bool { return map[uint64]bool{1: true, 2: true, 3: true} }); err == nil || len(ids) != 0 {
		t.Errorf("of ids that are all in use came %v, %v", ids, err)
	}
}

// TestPartsOf: decisions are written in parts that a store takes, by their bytes and by their
// number, and each once, in order.
func TestPartsOf(t *testing.T) {
	var changes []onpath.Change
	for i, size := range []int{900 << 10, 900 << 10, 200 << 10, 10, 10, 1 << 20, 10} {
		f := &onpath.Function{}
		f.Metadata.Labels = map[string]string{"x": strings.Repeat("x", size)}
		changes = append(changes, onpath.Change{Key: onpath.Key{Kind: onpath.KindFunction, Name: string(rune('a' + i))}, Object: f})
	}
	for range 2 * onpath.SureWrite {
		changes = append(changes, onpath.Change{Key: onpath.Key{Kind: onpath.KindChain, Name: "gone"}})
	}
	var names []string
	for _, part := range partsOf(changes) {
		size := 0
		for _, ch := range part {
			names = append(names, ch.Key.Name)
			if f, ok := ch.Object.(*onpath.Function); ok {
				size += len(f.Metadata.Labels["x"])
			}
		}
		if len(part) == 0 || len(part) >= onpath.SureWrite || size > partBytes && len(part) > 1 {
			t.Errorf("a part has %d changes with %d bytes", len(part), size)
		}
	}
	if len(names) != len(changes) || strings.Join(names[:7], "") != "abcdefg" {
		t.Errorf("%d of %d changes are written, first %v", len(names), len(changes), names[:7])
	}
}
