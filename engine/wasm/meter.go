package wasm

import "fmt"

// Fuel is the export of a metered module that holds the steps it may still take: a
// mutable i32, which the host sets before each call. Below 0 the module traps.
const Fuel = "onpath.fuel"

// What is charged besides one step for each instruction, which is charged where
// loops and functions begin.
const (
	callCost  = 400 // bounds the depth of calls, and so the stack
	localCost = 40  // likewise
	growCost  = 10_000
	bulkShift = 3 // filling and copying: a step for so many bits of length
)

// Meter writes the module anew with code that counts its steps, fuel at first.
func (m *Module) Meter(fuel int32) ([]byte, error) {
	m.locals = 0
	out := append([]byte(nil), magic...)
	sections := m.withSections(secGlobal, secExport)
	for _, s := range sections {
		body := s.body
		switch s.id {
		case secGlobal:
			entry := append(appendS32([]byte{typeI32, 1, opI32Const}, fuel), opEnd)
			body = extended(body, entry)
		case secExport:
			entry := append(appendU32(nil, uint32(len(Fuel))), Fuel...)
			body = extended(body, appendU32(append(entry, kindGlobal), m.globals))
		case secCode:
			var err error
			if body, err = m.meterCode(body); err != nil {
				return nil, err
			}
		}
		out = append(appendU32(append(out, s.id), uint32(len(body))), body...)
	}
	return out, nil
}

// withSections are the module's sections, and empty ones of those ids that it lacks.
func (m *Module) withSections(ids ...byte) []section {
	out := append([]section(nil), m.sections...)
	for _, id := range ids {
		at := 0
		for at < len(out) && rank(out[at].id) < rank(id) {
			at++
		}
		if at == len(out) || out[at].id != id {
			out = append(out[:at], append([]section{{id: id, body: []byte{0}}}, out[at:]...)...)
		}
	}
	return out
}

// extended is a vector with one more entry.
func extended(body, entry []byte) []byte {
	r := &reader{b: body}
	n := r.u32()
	return append(append(appendU32(nil, n+1), body[r.at:]...), entry...)
}

func (m *Module) meterCode(body []byte) ([]byte, error) {
	r := &reader{b: body}
	n := r.count()
	if n != len(m.types) {
		return nil, fmt.Errorf("it declares %d functions and has code for %d", len(m.types), n)
	}
	out := appendU32(nil, uint32(n))
	for i := range n {
		code := r.bytes(r.u32())
		if r.err != nil {
			return nil, fmt.Errorf("the code of function %d is broken: %w", i, r.err)
		}
		if int(m.types[i]) >= len(m.params) {
			return nil, fmt.Errorf("function %d is of type %d, which is not there", i, m.types[i])
		}
		f, err := m.meterFunction(code, m.params[m.types[i]])
		if err != nil {
			return nil, fmt.Errorf("the code of function %d: %w", i, err)
		}
		out = append(appendU32(out, uint32(len(f))), f...)
	}
	return out, nil
}

// meterFunction adds a local for lengths, and charges at the beginning, at loops, and
// where memory is filled, copied or grown.
func (m *Module) meterFunction(code []byte, params uint32) ([]byte, error) {
	r := &reader{b: code}
	groups, locals := r.count(), uint64(0)
	at := r.at
	for range groups {
		locals += uint64(r.u32())
		r.valueType()
	}
	if r.err != nil {
		return nil, r.err
	}
	if m.locals += locals; m.locals > maxLocals {
		return nil, fmt.Errorf("it has more than %d local variables with those before it", maxLocals)
	}
	out := appendU32(nil, uint32(groups+1))
	out = append(out, code[at:r.at]...)
	out = append(out, 1, typeI32)
	costs, err := loopCosts(code[r.at:])
	if err != nil {
		return nil, err
	}
	x := meter{global: m.globals, local: params + uint32(locals)}
	out = x.charge(out, costs[0]+callCost+int32(locals)*localCost)
	loop := 0
	for r.more() {
		begin := r.at
		op := r.instruction()
		if r.err != nil {
			return nil, r.err
		}
		switch op {
		case opMemoryInit, opMemoryCopy, opMemoryFill:
			out = x.chargeLength(out)
		case opMemoryGrow:
			out = x.charge(out, growCost)
		}
		out = append(out, code[begin:r.at]...)
		if op == opLoop {
			loop++
			out = x.charge(out, costs[loop])
		}
	}
	return out, nil
}

// loopCosts are the instructions of the function, and of each loop in the order in
// which they begin, those within it included.
func loopCosts(code []byte) ([]int32, error) {
	r := &reader{b: code}
	costs := []int32{0}
	type block struct {
		loop  int // index in costs, or 0
		begin int32
	}
	open := []block{{}}
	count := int32(0)
	for r.more() {
		if len(open) == 0 {
			return nil, fmt.Errorf("code stands behind its end")
		}
		op := r.instruction()
		count++
		switch op {
		case opBlock, opIf:
			open = append(open, block{})
		case opLoop:
			costs = append(costs, 0)
			open = append(open, block{loop: len(costs) - 1, begin: count})
		case opEnd:
			last := open[len(open)-1]
			open = open[:len(open)-1]
			if last.loop > 0 {
				costs[last.loop] = count - last.begin
			}
		}
	}
	if r.err != nil {
		return nil, r.err
	}
	if len(open) != 0 {
		return nil, fmt.Errorf("%d blocks do not end", len(open))
	}
	costs[0] = count
	return costs, nil
}

// meter is where a function finds its fuel and its local for lengths.
type meter struct{ global, local uint32 }

// charge writes: fuel -= n; trap if it is below 0.
func (x meter) charge(out []byte, n int32) []byte {
	out = appendU32(append(out, opGlobalGet), x.global)
	out = appendS32(append(out, opI32Const), n)
	return x.take(out)
}

// chargeLength charges by the number on top of the stack, which stays there.
func (x meter) chargeLength(out []byte) []byte {
	out = appendU32(append(out, opLocalTee), x.local)
	out = appendU32(append(out, opGlobalGet), x.global)
	out = appendU32(append(out, opLocalGet), x.local)
	out = append(out, opI32Const, bulkShift, opI32ShrU)
	return x.take(out)
}

func (x meter) take(out []byte) []byte {
	out = appendU32(append(out, opI32Sub, opGlobalSet), x.global)
	out = appendU32(append(out, opGlobalGet), x.global)
	return append(out, opI32Const, 0, opI32LtS, opIf, blockEmpty, opUnreachable, opEnd)
}
