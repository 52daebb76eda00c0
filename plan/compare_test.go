package plan

import (
	"maps"
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
