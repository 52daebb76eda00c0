package engine

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// TrialPacket is an IP packet as a function meets it.
type TrialPacket struct {
	IP      []byte
	Reverse bool
	Now     uint64 // ns
	// First is the tuple of the first fragment, of one behind it; else not valid.
	First onpath.Tuple
}

// Describe is the packet as functions are given it (struct onpath_packet), with at most shown
// of its bytes; nil if it is no IP packet.
func (p TrialPacket) Describe(shown uint32) []byte {
	r := p.received()
	if r == nil {
		return nil
	}
	b := make([]byte, packetStride)
	r.fill(b, shown, 1, p.Now)
	return b
}

func (p TrialPacket) received() *received {
	r := &received{h: packet.Parse(p.IP), path: 1, reverse: p.Reverse}
	if r.h.Verdict == packet.Malformed {
		return nil
	}
	if p.First.Src.IsValid() {
		r.h.Follow(p.First)
	}
	r.ip = append(make([]byte, 0, ethernet+maxData), p.IP[:r.h.Length]...)
	return r
}

// Outcome is what became of a packet.
type Outcome struct {
	Verdict byte // enum onpath_verdict
	Reason  byte // where it is not next
	// Packet is what goes on, with the function's edits; nil: nothing.
	Packet []byte
	// Sent are packets of the function's own.
	Sent [][]byte
}

// Carry does to a packet what a function said of it: after is the struct as the function left
// it.
func (p TrialPacket) Carry(verdict byte, after []byte) Outcome {
	o := Outcome{Verdict: verdict}
	if verdict != verdictNext {
		o.Reason = after[atReason]
		return o
	}
	r := p.received()
	r.edit(after, func() []byte { return make([]byte, ethernet+maxData) })
	if !r.gone {
		o.Packet = r.ip
	}
	return o
}

// Trial is one module that runs by itself, without a device.
type Trial struct {
	e     *Engine
	m     *module
	stop  context.CancelFunc
	ended chan error
	sent  [][]byte
}

// NewTrial starts a module. What it logs goes to out.
func NewTrial(ctx context.Context, spec onpath.WasmModule, out io.Writer) (*Trial, error) {
	e, err := New(slog.New(slog.DiscardHandler), out)
	if err != nil {
		return nil, err
	}
	t := &Trial{e: e, ended: make(chan error, 1)}
	e.trial, e.rights = t, onpath.PacketsOriginate
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	t.stop = stop
	go func() { t.ended <- e.Run(run) }()
	if t.m, err = load(ctx, spec, e.hostFor(ctx, spec)); err != nil {
		_ = t.Close()
		return nil, err
	}
	if t.m.packets == nil {
		_ = t.Close()
		return nil, fmt.Errorf("it takes no packets: it has no ONPATH_FUNCTION")
	}
	return t, nil
}

// Needs is how many bytes of packets the module is shown.
func (t *Trial) Needs() uint32 { return t.m.d.needs }

// Run gives the module a packet.
func (t *Trial) Run(ctx context.Context, p TrialPacket) (o Outcome, err error) {
	b := p.Describe(t.m.d.needs)
	if b == nil {
		return o, fmt.Errorf("it is no IP packet")
	}
	derr := t.e.do(ctx, func() {
		t.sent = nil
		mem := t.m.inst.Memory()
		mem.Write(t.m.d.packets, b)
		mem.WriteByte(t.m.d.verdicts, undecided)
		t.m.stack[0] = 1
		if err = t.m.call(t.m.packets); err != nil {
			return
		}
		verdict, _ := mem.ReadByte(t.m.d.verdicts)
		after, _ := mem.Read(t.m.d.packets, packetStride)
		o = p.Carry(verdict, after)
		o.Sent = t.sent
	})
	if derr != nil {
		err = derr
	}
	return o, err
}

// Counters are those that the module declares, and what it has set by name.
func (t *Trial) Counters(ctx context.Context) (c map[string]uint64, err error) {
	err = t.e.do(ctx, func() { c = t.m.counters() })
	return c, err
}

// Close ends the module.
func (t *Trial) Close() error {
	t.stop()
	err := <-t.ended
	if t.m != nil {
		t.m.close()
	}
	return err
}
