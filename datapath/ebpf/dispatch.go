package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/onpath/onpath/internal/bpfobject"
)

// caller is the subprogram of the dispatcher that leads to the functions.
const caller = "call_function"

// dispatcherSpec reads the compiled dispatchers, as those of a shard.
func dispatcherSpec(shard uint32) (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(dispatcherObject))
	if err != nil {
		return nil, fmt.Errorf("read the compiled dispatcher: %w", err)
	}
	return spec, errors.Join(fitFast(spec), setVariable(spec, "this_shard", shard))
}

// buildDispatcher links the functions of a shard, in the order of their slots, behind
// one of its dispatchers and loads it, with the maps of the programs that it works with.
func buildDispatcher(list []*linked, shard uint32, with *ebpf.Collection, name string) (*ebpf.Program, error) {
	spec, err := dispatcherSpec(shard)
	if err != nil {
		return nil, err
	}
	p := spec.Programs[name]
	spec.Programs = map[string]*ebpf.ProgramSpec{name: p}
	if p.Instructions, err = replaceCaller(p.Instructions, callerFor(list)); err != nil {
		return nil, err
	}
	for _, l := range list {
		code, err := l.object.Code(prefix(l.slot), l.tables)
		if err != nil {
			return nil, err
		}
		p.Instructions = append(p.Instructions, code...)
	}
	shared := map[string]*ebpf.Map{}
	uses := p.Instructions.ReferenceOffsets()
	for name, s := range spec.Maps {
		if uses[name] == nil {
			delete(spec.Maps, name)
			continue
		}
		if m := with.Maps[name]; m != nil && name[0] != '.' { // constants are its own
			shared[name] = m
			s.MaxEntries = m.MaxEntries() // some are the driver's choice
		}
	}
	if uses[".rodata"] == nil {
		spec.Variables = nil
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return nil, fmt.Errorf("link %d functions: %w", len(list), err)
	}
	defer c.Close()
	return c.DetachProgram(name), nil
}

func prefix(slot uint32) string { return fmt.Sprintf("f%d_", slot) }

// replaceCaller puts another body in the place of call_function's. The first
// instruction keeps what describes the subprogram.
func replaceCaller(code, body asm.Instructions) (asm.Instructions, error) {
	from := slices.IndexFunc(code, func(i asm.Instruction) bool { return i.Symbol() == caller })
	if from < 0 {
		return nil, fmt.Errorf("the compiled dispatcher has no %s", caller)
	}
	to := from + 1
	for to < len(code) && code[to].Symbol() == "" {
		to++
	}
	body[0] = body[0].WithMetadata(code[from].Metadata)
	return slices.Concat(code[:from], body, code[to:]), nil
}

// callerFor is the body of int call_function(u32 slot, struct onpath_packet *):
// the call of the function in that place, found by halving.
func callerFor(list []*linked) asm.Instructions {
	none := asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}
	body := slices.Concat(choose(list), none)
	return slices.Concat(asm.Instructions{
		asm.Mov.Reg(asm.R0, asm.R1), // the first instruction describes the subprogram, and does not count
		skip(asm.JEq.Imm(asm.R2, 0, ""), len(body)-len(none)),
	}, body)
}

// choose calls the function of the list whose slot is in R1, with R2, or falls
// through.
func choose(list []*linked) asm.Instructions {
	const few = 4
	if len(list) <= few {
		var out asm.Instructions
		for _, l := range list {
			out = append(out,
				skip(asm.JNE.Imm32(asm.R1, int32(l.slot), ""), 3),
				asm.Mov.Reg(asm.R1, asm.R2),
				asm.Call.Label(bpfobject.Symbol(prefix(l.slot))),
				asm.Return())
		}
		return out
	}
	mid := len(list) / 2
	low, high := choose(list[:mid]), choose(list[mid:])
	low = append(low, skip(asm.Ja.Label(""), len(high)))
	return slices.Concat(asm.Instructions{skip(asm.JGE.Imm32(asm.R1, int32(list[mid].slot), ""), len(low))}, low, high)
}

// skip makes a jump over the next n instructions. None of those that callerFor
// makes is a wide one.
func skip(jump asm.Instruction, n int) asm.Instruction {
	jump.Offset = int16(n)
	return jump.WithReference("")
}
