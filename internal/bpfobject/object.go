// Package bpfobject reads object files of ebpf functions (sdk/onpath.h), checks them
// before the kernel sees them, and prepares them for being linked.
//
// The checks stand before the verifier, not in its place: it keeps a function from
// harming the kernel, they keep it from what no packet function needs, and say so
// in words. Neither makes code of strangers harmless.
package bpfobject

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/sdk"
)

// Limits of one function.
const (
	MaxVerified     = 8192 // instructions that the verifier looks at, branches counted anew
	MaxInstructions = 4096
	MaxTables       = 32
	MaxEntries      = 1 << 22 // of one table
	MaxKey          = 512     // bytes
	MaxValue        = 64 << 10
)

// PacketSize is sizeof(struct onpath_packet); a test compares.
const PacketSize = 384

// PinPath is where tables are pinned, in a folder per instance.
const PinPath = "/sys/fs/bpf/onpath-functions"

// Names of sdk/onpath.h.
const (
	mainName     = "onpath_main"
	section      = "onpath"
	packetStruct = "onpath_packet"

	ConfigTable   = sdk.ConfigTable
	CountersTable = "onpath_counters"
	needsTable    = "onpath_needs"
	redirectsName = "onpath_redirects"
)

// Object is an object file that passed the checks.
type Object struct {
	SHA256  string // of the file, hexadecimal
	License string
	// Needs is how many bytes of a packet the function is shown.
	Needs uint32
	// Redirects: it may send packets to later elements of its chain.
	Redirects bool
	// Tables are its own, by name, read-only data included.
	Tables map[string]*ebpf.MapSpec
	// Config and Counters are the declared structs, or nil.
	Config, Counters *btf.Struct

	code asm.Instructions // of onpath_main and what it calls
}

// Parse reads an object file and checks what can be checked without the kernel.
// Whatever the file holds, the answer is an object or an error.
func Parse(code []byte) (o *Object, err error) {
	if len(code) > onpath.MaxObjectBytes {
		return nil, refuse("strip it (llvm-strip -g), and declare large tables as maps", "the object has %d bytes; at most %d",
			len(code), onpath.MaxObjectBytes)
	}
	if !bytes.HasPrefix(code, []byte("\x7fELF")) {
		return nil, refuse("compile it: clang -O2 -g -target bpf -c", "it is not an object file")
	}
	defer func() {
		if r := recover(); r != nil {
			o, err = nil, refuse("compile it anew", "the object file is broken: %v", r)
		}
	}()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(code))
	if err != nil {
		return nil, refuse("compile it anew: clang -O2 -g -target bpf -c", "the object file cannot be read: %v", clean(err))
	}
	sum := sha256.Sum256(code)
	o = &Object{SHA256: hex.EncodeToString(sum[:]), Tables: map[string]*ebpf.MapSpec{}}
	if err := o.takeProgram(spec); err != nil {
		return nil, err
	}
	if err := o.takeTables(spec); err != nil {
		return nil, err
	}
	if err := o.checkCode(); err != nil {
		return nil, err
	}
	return o, nil
}

func (o *Object) takeProgram(spec *ebpf.CollectionSpec) error {
	main := spec.Programs[mainName]
	switch {
	case main == nil:
		return refuse("begin the function with ONPATH_FUNCTION(p) of onpath.h", "the object has no function")
	case len(spec.Programs) > 1:
		return refuse("keep one", "the object has %d programs", len(spec.Programs))
	case main.SectionName != section || main.Type != ebpf.UnspecifiedProgram:
		return refuse("begin the function with ONPATH_FUNCTION(p) of onpath.h",
			"%s lies in section %s, which makes it another kind of program", mainName, quoted(main.SectionName))
	case len(spec.Variables) > 0 && hasWritable(spec):
		return refuse("declare a table (ONPATH_TABLE), which also survives restarts", "the object has global variables")
	}
	o.code, o.License = main.Instructions, main.License
	if o.License == "" {
		return refuse(`write ONPATH_LICENSE("…"), for example "GPL" or "Dual BSD/GPL"`, "the object does not name its licence")
	}
	return checkSignature(main)
}

func hasWritable(spec *ebpf.CollectionSpec) bool {
	for name := range spec.Maps {
		if strings.HasPrefix(name, ".data") || strings.HasPrefix(name, ".bss") {
			return true
		}
	}
	return false
}

// checkSignature wants int onpath_main(struct onpath_packet *), global, so that
// the verifier judges it by itself.
func checkSignature(main *ebpf.ProgramSpec) error {
	if len(main.Instructions) == 0 {
		return refuse("", "the function is empty")
	}
	fn := btf.FuncMetadata(&main.Instructions[0])
	if fn == nil {
		return refuse("compile with -g; llvm-strip -g keeps what is needed", "the object has no type information (BTF)")
	}
	proto, ok := btf.UnderlyingType(fn.Type).(*btf.FuncProto)
	wrong := func(format string, args ...any) error {
		return refuse("begin the function with ONPATH_FUNCTION(p) of onpath.h", "%s %s", mainName, fmt.Sprintf(format, args...))
	}
	switch {
	case !ok || fn.Linkage != btf.GlobalFunc:
		return wrong("is not a global function")
	case len(proto.Params) != 1:
		return wrong("takes %d arguments, and must take one", len(proto.Params))
	}
	if ret, ok := btf.UnderlyingType(proto.Return).(*btf.Int); !ok || ret.Size != 4 {
		return wrong("does not return int")
	}
	ptr, ok := btf.UnderlyingType(proto.Params[0].Type).(*btf.Pointer)
	if !ok {
		return wrong("does not take a struct %s *", packetStruct)
	}
	st, ok := btf.UnderlyingType(ptr.Target).(*btf.Struct)
	if !ok || st.Name != packetStruct {
		return wrong("does not take a struct %s *", packetStruct)
	}
	if st.Size != PacketSize {
		return refuse("compile it with the onpath.h of this version",
			"it was made with another onpath.h: its packets have %d bytes, and should have %d", st.Size, PacketSize)
	}
	return nil
}

// refuse makes the error of an object that is not accepted.
func refuse(remedy, format string, args ...any) error {
	e := onpath.Errorf(onpath.CodeInvalid, format, args...)
	e.Remedy = remedy
	return e
}

func quoted(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return fmt.Sprintf("%q", s)
}

// clean makes an error that quotes bytes of the file fit for a terminal.
func clean(err error) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return '?'
		}
		return r
	}, err.Error())
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}
