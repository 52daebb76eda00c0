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

// waiting is where packets wait for the agent.
func (n *Node) waiting() chan onpath.Punted {
	if n.punt.c == nil {
		n.punt.c = make(chan onpath.Punted, puntBuffer)
	}
	return n.punt.c
}

// Punted implements onpath.PuntReader.
func (n *Node) Punted(ctx context.Context, take func(onpath.Punted)) error {
	n.net.mu.Lock()
	n.punt.readers++
	c := n.waiting()
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

// puntAsleep hands the agent a packet for a sleeping instance. A frame begins with its source.
func (n *Node) puntAsleep(id onpath.VportID, d Delivery) {
	select {
	case n.waiting() <- onpath.Punted{Vport: id, Packet: slices.Clone(d.Packet), Frame: append([]byte(d.Src), d.Packet...)}:
	default:
	}
}

// inlet is an instance's device.
type inlet struct {
	n  *Node
	id onpath.VportID
}

// Inlet implements onpath.PuntReader.
func (n *Node) Inlet(id onpath.VportID) (onpath.Inlet, error) {
	n.net.mu.Lock()
	defer n.net.mu.Unlock()
	if n.local(id) == nil {
		return nil, onpath.Errorf(onpath.CodeNotFound, "vport %d is no instance's on this node", id)
	}
	return inlet{n, id}, nil
}

// Deliver implements onpath.Inlet.
func (in inlet) Deliver(frame []byte) error {
	in.n.net.mu.Lock()
	defer in.n.net.release()
	v, src := in.n.local(in.id), len(onpath.HostMAC(in.id))
	if v == nil || len(frame) < src {
		return onpath.Errorf(onpath.CodeInvalid, "vport %d is gone, or this is no frame that was kept", in.id)
	}
	d := in.n.deliveryOf(string(frame[:src]), frame[src:], v, BySteering)
	in.n.deliver(d)
	return nil
}

// Open implements onpath.Inlet.
func (in inlet) Open() error {
	in.n.net.mu.Lock()
	defer in.n.net.mu.Unlock()
	if v := in.n.local(in.id); v != nil {
		v.Asleep = false
	}
	return nil
}

// Close implements onpath.Inlet.
func (in inlet) Close() error { return nil }
