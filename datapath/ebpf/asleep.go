package ebpf

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// A sleeping instance's vport leads to the punt port instead of to the instance's device.
// All else is as if the instance were awake: flow entries, counters, mirrors, tunnels. The
// destination of a frame there is
//
//	02:6f, puntAsleep, the vport (24 bits, big endian)
//
// and its source is what the instance will see. In front stands a header for what the kernel
// has not done yet of a packet (struct virtio_net_hdr): its sum, its segments.
const (
	puntAsleep   = 0x91
	vnetHeader   = 10
	frameHeader  = vnetHeader + 14
	packetFrames = 1 << 16 // of IP, the largest
)

// asleep leads a vport to the punt port, as fast as the agent takes it.
func (k *compiler) asleep(p *onpath.Vport, slot uint32, v *vportValue) {
	v.Ifindex = uint32(k.now.punt)
	v.Flags &^= flagPeer
	v.DMAC = [6]byte{0x02, 0x6f, puntAsleep, byte(p.ID >> 16), byte(p.ID >> 8), byte(p.ID)}
	interval := max(1, uint64(time.Second)<<rateShift/uint64(max(1, p.Hold)))
	k.st.rates[slot*rateWays+rateOut] = rateValue{Interval: interval, Burst: uint64(p.Hold) * interval}
}

// maySleep reports whether an instance of the configuration may.
func maySleep(c *onpath.DatapathConfig) bool {
	for i := range c.Vports {
		if c.Vports[i].Hold > 0 {
			return true
		}
	}
	return false
}

// inlet is a socket at an instance's device.
type inlet struct {
	q     *puntPort
	fd    int
	slot  uint32
	awake vportValue
}

// Inlet implements onpath.PuntReader.
func (q *puntPort) Inlet(id onpath.VportID) (onpath.Inlet, error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.d.closed || q.d.state == nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "nothing is applied on this node")
	}
	v, ok := q.d.state.awake[uint32(id)]
	if !ok {
		return nil, onpath.Errorf(onpath.CodeNotFound, "vport %d is no instance's on this node", id)
	}
	in := &inlet{q: q, slot: q.d.state.slots[uint32(id)], awake: v}
	return in, q.d.ns.do(func() error {
		l, err := q.d.ns.nl.LinkByName(onpath.DeviceName(id))
		if err != nil {
			return fmt.Errorf("find device %s: %w", onpath.DeviceName(id), err)
		}
		in.fd, err = packetSocket(0, l.Attrs().Index)
		return err
	})
}

// packetSocket opens a socket at a device for whole frames with what the kernel left to be
// done of them. Protocol 0: nothing is received.
func packetSocket(protocol uint16, index int) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("open a packet socket: %w", err)
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: index})
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("prepare a packet socket: %w", err)
	}
	return fd, nil
}

// Deliver implements onpath.Inlet.
func (in *inlet) Deliver(frame []byte) error {
	if len(frame) < frameHeader {
		return onpath.Errorf(onpath.CodeInvalid, "%d bytes are no frame that was kept", len(frame))
	}
	copy(frame[vnetHeader:], in.awake.DMAC[:])
	if _, err := unix.Write(in.fd, frame); err != nil {
		return fmt.Errorf("let a kept packet in: %w", err)
	}
	return nil
}

// Open implements onpath.Inlet. Between the last look at the port and the write, and until the
// look after it, are some microseconds.
func (in *inlet) Open() error {
	in.q.taking.Lock()
	defer in.q.taking.Unlock()
	return firstError(in.q.drain, in.lead, in.q.drain)
}

// lead has the vport lead to its device, also by what the driver takes to be in force.
func (in *inlet) lead() error {
	d := in.q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.state == nil || d.state.vports[in.slot].ID != in.awake.ID {
		return onpath.Errorf(onpath.CodeNotFound, "vport %d is no instance's on this node any more", in.awake.ID)
	}
	d.state.vports[in.slot] = in.awake
	return d.maps.vports.put(in.slot, in.awake)
}

// Close implements onpath.Inlet.
func (in *inlet) Close() error { return unix.Close(in.fd) }
