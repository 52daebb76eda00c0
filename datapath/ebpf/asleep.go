package ebpf

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// A sleeping instance's vport leads to the punt port instead of to the instance's device
// (bpf/lib/asleep.h). All else is as if the instance were awake: flow entries, counters,
// mirrors, tunnels. In front of a frame there stands a header for what the kernel has not done
// yet of a packet (struct virtio_net_hdr): its sum, its segments.
const (
	vnetHeader   = 10
	frameHeader  = vnetHeader + 14
	packetFrames = 1 << 16 // of IP, the largest
)

// Counts of a slot in the map asleep.
const (
	asleepHanded = iota // by the programs
	asleepTaken         // as far as the agent has said
	asleepCounts
)

// wakingMost is how long packets may be on their way to an instance that is ready. Where
// some were lost the counts do not tell when the others are there.
const wakingMost = 500 * time.Millisecond

// asleep leads a vport to the punt port, as fast as the agent takes it.
func (k *compiler) asleep(p *onpath.Vport, slot uint32, v *vportValue) {
	v.Flags = v.Flags&^flagPeer | flagAsleep
	held := uint64(max(1, p.Hold))
	r := rateOfBytes(max(1, uint64(time.Second)<<(rateShift+rateFiner)/held), held)
	r.More = onpath.HeldOverhead
	k.st.rates[slot*rateWays+rateOut] = r
}

// countAnew has what is handed over counted from zero for vports that fall asleep.
func (q *puntPort) countAnew(was, want *state) error {
	q.counting.Lock()
	maps.DeleteFunc(q.taken, func(id onpath.VportID, _ uint32) bool { return want.slots[uint32(id)] == 0 })
	q.counting.Unlock()
	for slot, v := range want.vports {
		if v.Flags&flagAsleep == 0 || was != nil && was.vports[slot].ID == v.ID && was.vports[slot].Flags&flagAsleep != 0 {
			continue
		}
		q.counting.Lock()
		delete(q.taken, onpath.VportID(v.ID))
		q.counting.Unlock()
		for way := range uint32(asleepCounts) {
			if err := q.d.coll.Maps["asleep"].Put(slot*asleepCounts+way, uint32(0)); err != nil {
				return fmt.Errorf("count packets for vport %d: %w", v.ID, err)
			}
		}
	}
	return nil
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
	q      *puntPort
	fd     int
	id     onpath.VportID
	slot   uint32
	dmac   [6]byte
	counts *ebpf.Map // asleep
}

// Inlet implements onpath.PuntReader.
func (q *puntPort) Inlet(id onpath.VportID) (onpath.Inlet, error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.d.closed || q.d.state == nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "nothing is applied on this node")
	}
	slot := q.d.state.slots[uint32(id)]
	v := q.d.state.vports[slot]
	if v.ID != uint32(id) || v.Kind != vportInstance || v.Ifindex == 0 {
		return nil, onpath.Errorf(onpath.CodeNotFound, "vport %d is no instance's on this node", id)
	}
	in := &inlet{q: q, id: id, slot: slot, dmac: v.DMAC, counts: q.d.coll.Maps["asleep"]}
	return in, q.d.ns.do(func() error {
		var err error
		in.fd, err = packetSocket(0, int(v.Ifindex))
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
	copy(frame[vnetHeader:], in.dmac[:])
	if _, err := unix.Write(in.fd, frame); err != nil {
		return fmt.Errorf("let a kept packet in: %w", err)
	}
	return nil
}

// Open implements onpath.Inlet. Packets come here until the programs see that none is on its
// way, and go to the device from then on: whatever the time between two steps, none overtakes.
func (in *inlet) Open() error {
	q := in.q
	q.taking.Lock()
	defer q.taking.Unlock()
	if err := errors.Join(q.drain(), in.tellTaken(), in.lead(flagAsleep|flagWaking)); err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < wakingMost; {
		if err := errors.Join(q.drain(), in.tellTaken()); err != nil {
			return err
		}
		var handed uint32
		if err := in.counts.Lookup(in.slot*asleepCounts+asleepHanded, &handed); err != nil {
			return fmt.Errorf("count packets for vport %d: %w", in.id, err)
		}
		if handed == q.takenOf(in.id) {
			break
		}
		time.Sleep(50 * time.Microsecond)
	}
	return errors.Join(in.lead(0), q.drain())
}

// tellTaken tells the programs of how many packets the agent is done.
func (in *inlet) tellTaken() error {
	if err := in.counts.Put(in.slot*asleepCounts+asleepTaken, in.q.takenOf(in.id)); err != nil {
		return fmt.Errorf("count packets for vport %d: %w", in.id, err)
	}
	return nil
}

// lead sets where the vport leads, by flags.
func (in *inlet) lead(flags uint16) error {
	d := in.q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.state == nil || d.state.vports[in.slot].ID != uint32(in.id) {
		return onpath.Errorf(onpath.CodeNotFound, "vport %d is no instance's on this node", in.id)
	}
	return d.setFlags(in.slot, d.state.vports[in.slot].Flags&^(flagAsleep|flagWaking)|flags)
}

// takenOf is of how many packets for a vport the agent is done.
func (q *puntPort) takenOf(id onpath.VportID) uint32 {
	q.counting.Lock()
	defer q.counting.Unlock()
	return q.taken[id]
}

// Close implements onpath.Inlet.
func (in *inlet) Close() error { return unix.Close(in.fd) }
