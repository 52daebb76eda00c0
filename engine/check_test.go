package engine_test

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"
	"testing"

	"github.com/onpath/onpath/engine"
)

// wasmModule is a module with functions of one type, each with that body, and what an engine
// asks for; a section of more takes the place of its own one, or is added.
func wasmModule(functions int, results, body []byte, more map[byte][]byte) []byte {
	list := func(n int, each ...byte) []byte { return append(leb(n), bytes.Repeat(each, n)...) }
	const describe = "onpath_describe"
	sections := map[byte][]byte{
		1:  append([]byte{1, 0x60, 0}, append(leb(len(results)), results...)...),
		3:  list(functions, 0),
		5:  {1, 0, 1},
		7:  append(append([]byte{2, 6}, "memory\x02\x00"...), append([]byte{byte(len(describe))}, describe+"\x00\x00"...)...),
		10: list(functions, append(leb(len(body)), body...)...),
	}
	for id, b := range more {
		sections[id] = b
	}
	out := []byte("\x00asm\x01\x00\x00\x00")
	for _, id := range []byte{1, 3, 4, 5, 6, 7, 9, 10, 11} {
		if b, ok := sections[id]; ok {
			out = append(append(append(out, id), leb(len(b))...), b...)
		}
	}
	return out
}

func leb(n int) []byte { return binary.AppendUvarint(nil, uint64(n)) }

// TestBombs: servers and agents check modules that come from anywhere. Few bytes that would
// cost them much memory are refused before.
func TestBombs(t *testing.T) {
	i32 := []byte{0x7f}
	zero := []byte{0, 0x41, 0, 0x0b} // no locals; i32.const 0
	plain := wasmModule(1, i32, zero, nil)
	if _, err := engine.Check(t.Context(), plain); err != nil {
		t.Fatalf("a module without any of it: %v", err)
	}
	many, all := leb(1<<28), leb(1<<31-1)
	replaced := func(id byte, b ...[]byte) []byte {
		return wasmModule(1, i32, zero, map[byte][]byte{id: slices.Concat(b...)})
	}
	wide := bytes.Repeat(i32, 1000)
	blocks := append([]byte{0}, bytes.Repeat([]byte{0x02, 0x00, 0x00, 0x0b}, 50_000)...) // of the function's type, unreachable
	for what, code := range map[string][]byte{
		"tables": replaced(4, many), "table": replaced(4, []byte{1, 0x70, 0}, all), "many tables": replaced(4, leb(9000), bytes.Repeat([]byte{0x70, 0, 9}, 9000)),
		"globals": replaced(6, many), "exports": replaced(7, many), "name": replaced(7, []byte{1}, all),
		"element segments": replaced(9, many), "elements": replaced(9, []byte{1, 1, 0}, many), "expressions": replaced(9, []byte{1, 5, 0x70}, many),
		"functions": replaced(3, many), "code": replaced(10, many),
		"data segments": replaced(11, many), "data": replaced(11, []byte{1, 1}, all),
		"types": replaced(1, many), "parameters": replaced(1, []byte{1, 0x60}, all), "results": replaced(1, []byte{1, 0x60, 0}, all),
		"blocks' results": wasmModule(1, wide, append(blocks, 0x0b), nil),
		"locals":          wasmModule(2000, i32, slices.Concat([]byte{1}, leb(40_000), i32, zero[1:]), nil),
		"longer types":    replaced(1, []byte{1, 0x60, 1, 0x63, 0x70, 1, 0x7f}),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := engine.Check(t.Context(), code)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; err == nil || used > 32<<20 {
			t.Errorf("%s: %d bytes are checked in %d KiB: %v", what, len(code), used>>10, err)
		}
	}
}
