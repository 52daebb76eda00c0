// Package wasm reads WebAssembly modules as far as onpath must know them before they
// run: what they import, export and need; and writes into a module's code that it
// counts its own steps, so that none runs without end (Meter).
package wasm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
)

// PageSize is that of a module's memory, in bytes.
const PageSize = 64 << 10

// Bounds of what a module declares: some bytes of it cost a compiler much memory.
const (
	maxFunctions = 10_000
	maxTable     = 10_000 // entries, of all tables
	maxLocals    = 50_000 // of all functions
	maxParams    = 256    // of a function or a block
	maxResults   = 16     // likewise
)

// Section ids.
const (
	secType = iota + 1
	secImport
	secFunction
	secTable
	secMemory
	secGlobal
	secExport
	secStart
	secElement
	secCode
	secData
	secDataCount
)

// Kinds of import and export.
const (
	kindFunction = iota
	kindTable
	kindMemory
	kindGlobal
)

// Import is a function that a module calls outside itself.
type Import struct{ Module, Name string }

// Module is what is known of a module.
type Module struct {
	SHA256  string
	Imports []Import
	Exports []string // functions
	// MinPages are there from the beginning; MaxPages is the most that it asks for, 0: it
	// says nothing.
	MinPages, MaxPages uint32

	sections []section
	params   []uint32 // parameters, by type
	types    []uint32 // of its own functions, by number
	globals  uint32   // with imported ones
	locals   uint64   // of the functions metered so far
}

type section struct {
	id   byte
	body []byte
}

var magic = []byte{0, 'a', 's', 'm', 1, 0, 0, 0}

// Is tells whether a file says that it is a module.
func Is(code []byte) bool { return bytes.HasPrefix(code, magic[:4]) }

// Read reads a module. It sees that its parts are whole and within bounds, and that each
// list has no more entries than bytes: compilers make room for as many as it says. Whether
// its code is valid is seen when it is compiled.
func Read(code []byte) (*Module, error) {
	if !bytes.HasPrefix(code, magic) {
		return nil, fmt.Errorf("no WebAssembly module of version 1: it begins with % x", code[:min(len(code), len(magic))])
	}
	sum := sha256.Sum256(code)
	m := &Module{SHA256: hex.EncodeToString(sum[:])}
	r := &reader{b: code, at: len(magic)}
	for r.more() {
		s := section{id: r.byte()}
		s.body = r.bytes(r.u32())
		if r.err == nil {
			if err := m.section(s); err != nil {
				return nil, err
			}
		}
	}
	if r.err != nil {
		return nil, fmt.Errorf("the module is broken: %w", r.err)
	}
	return m, nil
}

// rank is a section's place in a module, which is not its id.
func rank(id byte) int {
	return slices.Index([]byte{
		secType, secImport, secFunction, secTable, secMemory, secGlobal, secExport, secStart, secElement, secDataCount, secCode, secData,
	}, id)
}

func (m *Module) section(s section) error {
	if s.id == 0 {
		return nil // names and the like, which may be large
	}
	if rank(s.id) < 0 {
		return fmt.Errorf("section %d is not offered", s.id)
	}
	if n := len(m.sections); n > 0 && rank(m.sections[n-1].id) >= rank(s.id) {
		return fmt.Errorf("section %d is out of order", s.id)
	}
	m.sections = append(m.sections, s)
	r := &reader{b: s.body}
	var err error
	switch s.id {
	case secType:
		err = m.readTypes(r)
	case secImport:
		err = m.readImports(r)
	case secFunction:
		for range r.count() {
			m.types = append(m.types, r.u32())
		}
		if len(m.types) > maxFunctions {
			err = fmt.Errorf("it has %d functions; %d is the most", len(m.types), maxFunctions)
		}
	case secTable:
		err = m.readTables(r)
	case secMemory:
		err = m.readMemory(r)
	case secGlobal:
		m.readGlobals(r)
	case secExport:
		m.readExports(r)
	case secStart:
		return fmt.Errorf("it has a start function; onpath calls onpath_start, if that is exported")
	case secElement:
		readElements(r)
	case secData:
		readData(r)
	default: // secCode is read when it is metered
		return nil
	}
	if err == nil && r.err != nil {
		err = fmt.Errorf("section %d is broken: %w", s.id, r.err)
	}
	return err
}

func (m *Module) readTypes(r *reader) error {
	for range r.count() {
		if c := r.byte(); c != 0x60 && r.err == nil {
			return fmt.Errorf("type %#x is not offered", c)
		}
		params := r.types()
		m.params = append(m.params, params)
		if results := r.types(); params > maxParams || results > maxResults {
			return fmt.Errorf("it has a function of %d parameters and %d results; %d and %d are the most",
				params, results, maxParams, maxResults)
		}
	}
	return nil
}

func (m *Module) readImports(r *reader) error {
	for range r.count() {
		i := Import{r.name(), r.name()}
		if kind := r.byte(); kind != kindFunction && r.err == nil {
			return fmt.Errorf("import %s %s: only functions can be imported", i.Module, i.Name)
		}
		r.u32()
		m.Imports = append(m.Imports, i)
	}
	return nil
}

func (m *Module) readTables(r *reader) error {
	entries := uint64(0)
	for range r.count() {
		r.reference()
		least, _ := r.limits()
		if entries += uint64(least) + 1; entries > maxTable {
			return fmt.Errorf("it has tables of more than %d entries", maxTable)
		}
	}
	return nil
}

func (m *Module) readGlobals(r *reader) {
	n := r.count()
	for range n {
		r.valueType()
		r.byte()
		r.expression()
	}
	m.globals += uint32(n)
}

// readElements passes over what fills tables (core specification §5.5.12).
func readElements(r *reader) {
	const passive, indexed, expressions = 1, 2, 4
	for range r.count() {
		flags := r.u32()
		if flags > passive|indexed|expressions {
			r.fail(fmt.Errorf("element segment %#x is not offered", flags))
		}
		if flags&(passive|indexed) == indexed {
			r.u32()
		}
		if flags&passive == 0 {
			r.expression()
		}
		switch {
		case flags&(passive|indexed) == 0: // functions, and nothing says so
		case flags&expressions == 0:
			r.byte()
		default:
			r.reference()
		}
		for range r.count() {
			if flags&expressions == 0 {
				r.u32()
			} else {
				r.expression()
			}
		}
	}
}

// readData passes over what fills the memory (§5.5.14).
func readData(r *reader) {
	const passive, indexed = 1, 2
	for range r.count() {
		flags := r.u32()
		if flags > indexed {
			r.fail(fmt.Errorf("data segment %#x is not offered", flags))
		}
		if flags == indexed {
			r.u32()
		}
		if flags != passive {
			r.expression()
		}
		r.bytes(r.u32())
	}
}

func (m *Module) readMemory(r *reader) error {
	if n := r.count(); n != 1 {
		return fmt.Errorf("it has %d memories; one is needed", n)
	}
	m.MinPages, m.MaxPages = r.limits()
	return nil
}

func (r *reader) limits() (least, most uint32) {
	flags := r.byte()
	if flags > 1 {
		r.fail(fmt.Errorf("limits %#x are not offered", flags))
	}
	least = r.u32()
	if flags == 1 {
		most = r.u32()
	}
	return least, most
}

func (m *Module) readExports(r *reader) {
	for range r.count() {
		name := r.name()
		if r.byte() == kindFunction {
			m.Exports = append(m.Exports, name)
		}
		r.u32()
	}
}

// Blocks are the modules from which it imports, sorted.
func (m *Module) Blocks() []string {
	var out []string
	for _, i := range m.Imports {
		out = append(out, i.Module)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
