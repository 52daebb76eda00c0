package plan

import (
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestBlocks: a function whose modules use a block is placed where that is offered, and its
// chain says which one is not.
func TestBlocks(t *testing.T) {
	s := newSim(t, 7)
	s.blocks["fra1-n1"] = []string{"clock/1"}
	s.blocks["fra1-n2"] = []string{"clock/1", "kv/1"}
	s.site("fra1", 1, 2)
	gw := aNode("fra1-gw", "fra1", 100, true)
	gw.Spec.Schedulable = new(bool)
	f := aFunction("default", "fw", nil)
	f.Spec = onpath.FunctionSpec{Wasm: &onpath.WasmSpec{Modules: []onpath.WasmModule{{Name: "m", Module: "m.wasm", Code: []byte("\x00asm")}}}}
	f.Status.Modules = []onpath.ModuleFacts{{Name: "m", Blocks: []string{"clock/1", "kv/1"}}}
	s.apply(gw, f, aChain("default", "web", through("fw", 2)))
	s.settle()
	list := s.instances("web-fw")
	for _, i := range list {
		if i.Spec.Node != "fra1-n2" {
			t.Errorf("%s is on %s", i.Metadata.Name, i.Spec.Node)
		}
	}
	if len(list) != 2 {
		t.Errorf("%d instances", len(list))
	}
	s.blocks["fra1-n2"] = []string{}
	s.hear()
	s.apply(aChain("default", "web", through("fw", 3)))
	s.settle()
	if n := len(s.instances("web-fw")); n != 2 {
		t.Errorf("%d instances, of which 2 were placed when the block was offered", n)
	}
	if m := s.chain("default", "web").Status.Elements[0].Message; !strings.Contains(m, "fra1-n1 does not offer modules kv/1") {
		t.Errorf("the chain says %q", m)
	}
	if n := s.objects[onpath.Key{Kind: onpath.KindNode, Name: "fra1-n1"}].(*onpath.Node); len(n.Status.Blocks) != 1 {
		t.Errorf("the node's status offers %v", n.Status.Blocks)
	}
}
