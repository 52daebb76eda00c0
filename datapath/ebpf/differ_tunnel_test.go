package ebpf_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	cilium "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/onpath/onpath/datapath/datapathtest"
)

// tunnelEnd is a program that gives a frame what the VXLAN device would have noted
// of it, and goes on with the data path's: a test run has no such device. cb[0] is
// the VNI, cb[1] the sender's IPv4 address, both in the machine's order.
type tunnelEnd struct {
	first *cilium.Program
	next  *cilium.Map
	of    *cilium.Program
}

// Offsets in struct bpf_tunnel_key, and of __sk_buff's cb.
const (
	keySize, keyTTL, keyLocal = 44, 21, 28
	cbOffset                  = 48
)

func newTunnelEnd(t *testing.T) *tunnelEnd {
	t.Helper()
	const key = -48
	code := asm.Instructions{asm.Mov.Imm(asm.R1, 0)}
	for at := int16(key); at < 0; at += 8 {
		code = append(code, asm.StoreMem(asm.R10, at, asm.R1, asm.DWord))
	}
	code = append(code,
		asm.LoadMem(asm.R1, asm.R6, cbOffset, asm.Word), asm.StoreMem(asm.R10, key, asm.R1, asm.Word),
		asm.LoadMem(asm.R1, asm.R6, cbOffset+4, asm.Word), asm.StoreMem(asm.R10, key+keyLocal, asm.R1, asm.Word),
		asm.Mov.Imm(asm.R1, 255), asm.StoreMem(asm.R10, key+keyTTL, asm.R1, asm.Byte),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, key),
		asm.Mov.Imm(asm.R3, keySize), asm.Mov.Imm(asm.R4, 0), asm.FnSkbSetTunnelKey.Call(),
	)
	return newFirst(t, code)
}

// newLonger is a program that makes a frame as long as cb[0] says, with zeros.
func newLonger(t *testing.T) *tunnelEnd {
	t.Helper()
	return newFirst(t, asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMem(asm.R2, asm.R6, cbOffset, asm.Word), asm.Mov.Imm(asm.R3, 0), asm.FnSkbChangeTail.Call(),
		asm.JEq.Imm(asm.R0, 0, "on"), asm.Mov.Imm(asm.R0, int32(notLengthened)), asm.Return(),
		asm.Mov.Imm(asm.R1, 0).WithSymbol("on"), asm.StoreMem(asm.R6, cbOffset, asm.R1, asm.Word),
	})
}

// notLengthened is the verdict on a frame that is longer than its device takes.
const notLengthened = 77

// newFirst makes a program of code, which finds the frame in R6, and of a call of the
// one that is put behind it.
func newFirst(t *testing.T, code asm.Instructions) *tunnelEnd {
	t.Helper()
	next, err := cilium.NewMap(&cilium.MapSpec{Type: cilium.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { next.Close() })
	code = append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, code...)
	code = append(code,
		asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, next.FD()), asm.Mov.Imm(asm.R3, 0), asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, -1), asm.Return(),
	)
	first, err := cilium.NewProgram(&cilium.ProgramSpec{Type: cilium.SchedCLS, Instructions: code, License: "GPL"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { first.Close() })
	return &tunnelEnd{first: first, next: next}
}

// before has prog run behind it.
func (e *tunnelEnd) before(t *testing.T, prog *cilium.Program) {
	t.Helper()
	if e.of == prog {
		return
	}
	if err := e.next.Put(uint32(0), uint32(prog.FD())); err != nil {
		t.Fatal(err)
	}
	e.of = prog
}

// longRun is how long a frame may be that a test run takes whole, in bytes: a page
// less what the kernel keeps of it.
const longRun = 3400

// lengthen gives a program and a beginning of a long frame with which it gets all of
// it: what is cut off is zeros.
func (p *programmed) lengthen(prog *cilium.Program, in []byte, ctx *skbContext) (*cilium.Program, []byte) {
	p.t.Helper()
	if p.longer == nil {
		p.longer = newLonger(p.t)
	}
	p.longer.before(p.t, prog)
	if bytes.Count(in[datapathtest.Opening:], []byte{0}) != len(in)-datapathtest.Opening {
		p.t.Fatalf("a frame of %d bytes does not end with zeros", len(in))
	}
	ctx[12] = uint32(len(in))
	return p.longer.first, in[:datapathtest.Opening]
}

// PutTunnel implements datapathtest.Prober.
func (p *programmed) PutTunnel(node string, f datapathtest.TunnelPacket) (datapathtest.Outcome, datapathtest.Frame, string) {
	p.t.Helper()
	if !p.inside {
		p.enter(node)
	}
	prog := p.drivers[node].Program()
	if p.tunnel == nil {
		p.tunnel = newTunnelEnd(p.t)
	}
	p.tunnel.before(p.t, prog)
	in := inTunnel(f)
	if len(in) < 60 && len(f.Packet) < 40 {
		return datapathtest.Unfit, datapathtest.Frame{}, ""
	}
	from := f.From.As4()
	ctx := skbContext{10: p.deviceIndex(p.drivers[node].TunnelDevice()), 12: uint32(f.Next), 13: binary.BigEndian.Uint32(from[:])}
	verdict, out := p.run(p.tunnel.first, in, &ctx)
	switch verdict {
	case tcShot:
		return datapathtest.Gone, datapathtest.Frame{}, ""
	case tcRedirect:
		return datapathtest.Sent, out, ""
	}
	return datapathtest.Left, datapathtest.Frame{}, "" // which is never right
}

// inTunnel is a tunnel packet as the VXLAN device gives it.
func inTunnel(p datapathtest.TunnelPacket) []byte {
	var b []byte
	for _, v := range []uint32{uint32(p.Prev), uint32(p.Entry), uint32(p.Group), p.Secret} {
		b = append(b, byte(v>>16), byte(v>>8), byte(v))
	}
	b = binary.BigEndian.AppendUint16(b, etherType(datapathtest.Frame{Packet: p.Packet}))
	return append(b, p.Packet...)
}
