package ebpf

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// maxStack is what all frames of a chain of calls may take together, each rounded
// up to 32 bytes, and maxCalls how many there may be. Newer kernels round to 16,
// so what this one loads, an older one may refuse.
const (
	maxStack = 512
	maxCalls = 8
)

// TestStack adds up the stack of every chain of calls, as old verifiers do.
func TestStack(t *testing.T) {
	spec, err := objectSpec(Options{Flows: 1024})
	if err != nil {
		t.Fatal(err)
	}
	functions, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(dispatcherObject))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(spec.Programs, functions.Programs)
	for name, p := range spec.Programs {
		frames := framesOf(p.Instructions)
		stack, calls, chain := frames.deepest(name, map[string]deepest{})
		t.Logf("%s takes %d bytes of stack in %d calls: %s", name, stack, calls, chain)
		if stack > maxStack || calls > maxCalls {
			t.Errorf("%s: at most %d bytes in %d calls are allowed", name, maxStack, maxCalls)
		}
	}
}

// frames are the functions of a program by name.
type frames map[string]*frame

type frame struct {
	bytes int
	calls map[string]bool
}

type deepest struct {
	bytes, calls int
	chain        string
}

// framesOf finds the lowest slot of the stack that each function touches.
func framesOf(list asm.Instructions) frames {
	out := frames{}
	var f *frame
	for i, ins := range list {
		if s := ins.Symbol(); s != "" {
			f = &frame{calls: map[string]bool{}}
			out[s] = f
		}
		if ins.IsFunctionCall() {
			f.calls[ins.Reference()] = true
		}
		class := ins.OpCode.Class()
		switch {
		case ins.Dst == asm.R10 && class.IsStore(), ins.Src == asm.R10 && class.IsLoad():
			f.bytes = max(f.bytes, -int(ins.Offset))
		case class.IsALU() && ins.OpCode.ALUOp() == asm.Add && ins.OpCode.Source() == asm.ImmSource && i > 0:
			if from := list[i-1]; from.Src == asm.R10 && from.Dst == ins.Dst {
				f.bytes = max(f.bytes, -int(ins.Constant))
			}
		}
	}
	return out
}

func (f frames) deepest(name string, known map[string]deepest) (bytes, calls int, chain string) {
	if d, ok := known[name]; ok {
		return d.bytes, d.calls, d.chain
	}
	var below deepest
	for c := range f[name].calls {
		b, n, s := f.deepest(c, known)
		below.calls = max(below.calls, n)
		if b > below.bytes {
			below.bytes, below.chain = b, s
		}
	}
	d := deepest{max(32, (f[name].bytes+31)/32*32) + below.bytes, below.calls + 1, fmt.Sprintf("%s (%d) %s", name, f[name].bytes, below.chain)}
	known[name] = d
	return d.bytes, d.calls, d.chain
}
