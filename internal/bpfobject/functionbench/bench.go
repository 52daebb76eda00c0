// Package functionbench runs one ebpf function by itself, for its tests: packets in, verdicts
// and edits out.
package functionbench

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpffs"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/sdk"
)

// Bench is one function loaded by itself, with tables of its own.
type Bench struct {
	Object *bpfobject.Object
	Tables sdk.Tables

	t     testing.TB
	trial *bpfobject.Trial
}

// Load loads a function's object until the test ends. Two of one name share their
// tables. It skips the test without the rights.
func Load(t testing.TB, name string, code []byte) *Bench {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to load programs")
	}
	b := &Bench{t: t}
	var err error
	if b.Object, err = bpfobject.Parse(code); err != nil {
		t.Fatal(err)
	}
	if err := bpffs.Need(bpfobject.PinPath); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(bpfobject.PinPath, fmt.Sprintf("test-%s-%d", name, os.Getpid()))
	t.Cleanup(func() { os.RemoveAll(dir) })
	if b.Tables, err = b.Object.OpenTables(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bpfobject.CloseTables(b.Tables) })
	if _, err := b.Object.Verify(b.Tables); err != nil {
		t.Fatal(err)
	}
	if b.trial, err = b.Object.Load(b.Tables); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.trial.Close)
	return b
}

// Tell puts in force what compile makes of a configuration.
func (b *Bench) Tell(compile func(sdk.Config) (sdk.Write, error), config sdk.Config) {
	b.t.Helper()
	write, err := compile(config)
	if err == nil {
		err = write(b.Tables)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// Packet is a struct onpath_packet in part.
type Packet struct {
	Tuple   onpath.Tuple
	Reverse bool
	Is      uint16
	Wire    uint32 // bytes
	Now     uint64 // ns

	ICMPType, ICMPCode uint8
}

func (p Packet) bytes() []byte {
	b := make([]byte, 384)
	src, dst := p.Tuple.Src.As16(), p.Tuple.Dst.As16()
	copy(b, src[:])
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint16(b[32:], p.Tuple.SrcPort)
	binary.BigEndian.PutUint16(b[34:], p.Tuple.DstPort)
	b[36], b[37] = 6, p.Tuple.Protocol
	if p.Tuple.Src.Is4() {
		b[36] = 4
	}
	if p.Reverse {
		b[38] = 1
	}
	binary.NativeEndian.PutUint16(b[40:], p.Is)
	b[43], b[123] = p.ICMPType, p.ICMPCode
	binary.NativeEndian.PutUint32(b[48:], 1)
	binary.NativeEndian.PutUint32(b[52:], p.Wire)
	binary.NativeEndian.PutUint64(b[64:], p.Now)
	return b
}

// Run gives the function a packet: its verdict, and the struct as it left it.
func (b *Bench) Run(p Packet) (verdict int32, after []byte) {
	b.t.Helper()
	v, after, err := b.trial.Run(p.bytes())
	if err != nil {
		b.t.Fatal(err)
	}
	return v, after
}

// Verdict is Run's.
func (b *Bench) Verdict(p Packet) int32 {
	b.t.Helper()
	v, _ := b.Run(p)
	return v
}
