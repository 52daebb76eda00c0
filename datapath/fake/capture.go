package fake

import (
	"context"
	"encoding/binary"
	"io"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// tap is one capture under way.
type tap struct {
	spec onpath.CaptureSpec
	c    chan captured
}

type captured struct {
	at       time.Time
	outbound bool // handed to the vport
	length   int  // of the packet, bytes
	data     []byte
}

// tapBuffer is how many packets may wait for a capture's writer; more are lost.
const tapBuffer = 4096

// show gives a packet to the captures at a vport.
func (n *Node) show(id onpath.VportID, outbound bool, b []byte) {
	for t := range n.taps {
		if t.spec.Vport != id || !t.wants(b) {
			continue
		}
		kept := len(b)
		if t.spec.Length > 0 {
			kept = min(kept, t.spec.Length)
		}
		select {
		case t.c <- captured{n.now(), outbound, len(b), append([]byte(nil), b[:kept]...)}:
		default:
		}
	}
}

func (t *tap) wants(b []byte) bool {
	if t.spec.Tuple == nil {
		return true
	}
	h := packet.Parse(b)
	f := onpath.FlowFilter{Tuple: t.spec.Tuple}
	return h.Verdict != packet.Malformed && f.Matches(onpath.FlowEntry{Tuple: h.Tuple})
}

// Capture implements onpath.Datapath.
func (n *Node) Capture(ctx context.Context, s onpath.CaptureSpec, w io.Writer) error {
	t := &tap{spec: s, c: make(chan captured, tapBuffer)}
	n.net.mu.Lock()
	if s.Vport == 0 || (s.Vport != n.edgeVport() && n.local(s.Vport) == nil) {
		n.net.mu.Unlock()
		return onpath.Errorf(onpath.CodeNotFound, "node %s has no vport %d", n.name, s.Vport)
	}
	if n.taps == nil {
		n.taps = map[*tap]struct{}{}
	}
	n.taps[t] = struct{}{}
	n.net.mu.Unlock()
	defer func() {
		n.net.mu.Lock()
		delete(n.taps, t)
		n.net.mu.Unlock()
	}()
	if _, err := w.Write(pcapngHead()); err != nil {
		return err
	}
	for count := 0; s.Count == 0 || count < s.Count; count++ {
		select {
		case <-ctx.Done():
			return nil
		case p := <-t.c:
			if _, err := w.Write(p.block()); err != nil {
				return err
			}
		}
	}
	return nil
}

// pcapngHead is a section header and one interface of raw IP
// (draft-ietf-opsawg-pcapng §4.1, §4.2), in little-endian order.
func pcapngHead() []byte {
	o := binary.LittleEndian
	b := o.AppendUint32(nil, 0x0a0d0d0a)
	b = o.AppendUint32(b, 28)
	b = o.AppendUint32(b, 0x1a2b3c4d)
	b = o.AppendUint16(b, 1)
	b = o.AppendUint16(b, 0)
	b = o.AppendUint64(b, ^uint64(0)) // length of the section unknown
	b = o.AppendUint32(b, 28)
	b = o.AppendUint32(b, 1)
	b = o.AppendUint32(b, 20)
	b = o.AppendUint16(b, 101) // LINKTYPE_RAW
	b = o.AppendUint16(b, 0)
	b = o.AppendUint32(b, 0) // no limit
	return o.AppendUint32(b, 20)
}

// block is an enhanced packet block (§4.3) with the direction as its flags.
func (p captured) block() []byte {
	o := binary.LittleEndian
	padded := (len(p.data) + 3) &^ 3
	size := uint32(32 + padded + 12)
	us := uint64(p.at.UnixMicro())
	b := o.AppendUint32(nil, 6)
	b = o.AppendUint32(b, size)
	b = o.AppendUint32(b, 0)
	b = o.AppendUint32(b, uint32(us>>32))
	b = o.AppendUint32(b, uint32(us))
	b = o.AppendUint32(b, uint32(len(p.data)))
	b = o.AppendUint32(b, uint32(p.length))
	b = append(b, p.data...)
	b = append(b, make([]byte, padded-len(p.data))...)
	flags := uint32(1) // inbound
	if p.outbound {
		flags = 2
	}
	b = o.AppendUint16(b, 2) // epb_flags
	b = o.AppendUint16(b, 4)
	b = o.AppendUint32(b, flags)
	b = o.AppendUint32(b, 0) // end of options
	return o.AppendUint32(b, size)
}
