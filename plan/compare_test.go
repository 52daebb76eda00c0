package plan

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestCompareReplaces: of a changed function, a preview shows all old instances go
// and as many new ones come as are wanted, though in truth the old ones stay until
// the new ones have proved themselves.
func TestCompareReplaces(t *testing.T) {
	s := fraWeb(t, 2, 2)
	s.pass(5 * time.Second)
	before := s.snapshot()
	before.Objects = maps.Clone(before.Objects)
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) { f.Container.Command = []string{"new"} }), aChain("default", "web", through("fw", 1)))
	count := map[onpath.PreviewAction]int{}
	p := Compare(before, s.snapshot())
	for _, i := range p.Instances {
		count[i.Action]++
	}
	if count[onpath.PreviewStart] != 1 || count[onpath.PreviewDrain] != 2 {
		t.Errorf("the preview has %+v; 1 must start and 2 drain", p.Instances)
	}
}

// TestCompareTells: a preview says which chain has traffic that two select.
func TestCompareTells(t *testing.T) {
	s := fraWeb(t, 2, 1)
	before := s.snapshot()
	before.Objects = maps.Clone(before.Objects)
	all := aChain("default", "all", through("cache", 1))
	all.Spec.From, all.Spec.To = onpath.Endpoints{Any: true}, onpath.Endpoints{Any: true}
	all.Spec.Priority = 5
	s.apply(all)
	p := Compare(before, s.snapshot())
	if len(p.Notes) != 1 || !strings.HasPrefix(p.Notes[0], "chain default/all (priority 5) has this before chain default/web (0)") {
		t.Errorf("notes %q", p.Notes)
	}
	if p := Compare(s.snapshot(), s.snapshot()); len(p.Notes) > 0 {
		t.Errorf("of no change: %q", p.Notes)
	}
}
