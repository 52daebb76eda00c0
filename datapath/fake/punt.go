package fake

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// What messages of GIST have (RFC 5971 §5.3.1, §A.1).
const (
	gistPort  = 270
	gistMagic = 0x4e04bda5
	gistQMode = 0x80
)

// puntBuffer is how many packets may wait for the agent; more are lost.
const puntBuffer = 256

// puntPort is where packets for the agent wait.
type puntPort struct {
	wanted  *onpath.Punt
	readers int
	due     time.Time // when all that has passed would have passed at the rate
	c       chan onpath.Punted
}

// Punted implements onpath.PuntReader.
func (n *Node) Punted(ctx context.Context, take func(onpath.Punted)) error {
	n.net.mu.Lock()
	if n.punt.c == nil {
		n.punt.c = make(chan onpath.Punted, puntBuffer)
	}
	n.punt.readers++
	c := n.punt.c
	n.net.mu.Unlock()
	defer func() {
		n.net.mu.Lock()
		defer n.net.mu.Unlock()
		n.punt.readers--
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p := <-c:
			take(p)
		}
	}
}

// punted hands a packet at an uplink to the agent, if it is for it.
func (n *Node) punted(device string, b []byte, h *packet.Header) bool {
	u, w := n.edgeUplink(device), n.punt.wanted
	if w == nil || n.punt.readers == 0 || u.Attach != onpath.AttachRouter && u.Attach != onpath.AttachArm {
		return false
	}
	if h.Protocol != packet.UDP || h.Tuple.DstPort != gistPort || !h.Whole() || h.IsError || h.Length < h.L4+8+12 {
		return false
	}
	m := b[h.L4+8:]
	if binary.BigEndian.Uint32(m) != gistMagic || binary.BigEndian.Uint16(m[8:]) != w.NSLPID ||
		m[10]&gistQMode == 0 && !n.isLocal(h.Tuple.Dst) {
		return false
	}
	now := n.now()
	if n.punt.due.Sub(now) > time.Second/10 {
		return true
	}
	if n.punt.due.Before(now) {
		n.punt.due = now
	}
	n.punt.due = n.punt.due.Add(time.Second / time.Duration(w.Rate))
	index := 1 + slices.IndexFunc(n.options.Uplinks, func(o Uplink) bool { return o.Device == device })
	select {
	case n.punt.c <- onpath.Punted{Vport: n.edge.Vport, Device: index, Packet: slices.Clone(b[:h.Length])}:
	default:
	}
	return true
}
