package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// puntProgram hands packets to the agent (bpf/lib/punt.h).
const puntProgram = "onpath_punt"

// The punt port: the programs' end and the agent's.
const (
	puntDevice = "onpath-punt"
	puntReader = "onpath-punt-a"
)

// How long after a reader's last word packets still go to it, how often it speaks, and what
// waits for it at most, bytes.
const (
	puntLease  = 5 * time.Second
	puntTick   = time.Second
	puntBuffer = 2 << 20
	puntFrames = puntBuffer / 512 // the kernel counts each as more
)

// puntPort is the driver's part that hands packets to the agent.
type puntPort struct {
	d    *Driver
	made chan struct{} // there is a port, to whoever waits for one
	// fd is the agent's end where it is open already; 0: it is not, or is being read.
	// Guarded by d.mu.
	fd   int
	read bool

	// taking is held while packets are read and taken.
	taking sync.Mutex
	from   int // the socket; 0: nobody reads
	buffer []byte
	take   func(onpath.Punted)

	counting sync.Mutex // for a moment, whoever holds what else
	taken    map[onpath.VportID]uint32
}

// applyPunt says what goes to the port, which is at index, or takes it away: 0. It runs in
// the driver's namespace, with q.d.mu held.
func (q *puntPort) applyPunt(p *onpath.Punt, index int, sleepers bool) error {
	if index == 0 {
		q.let()
		if err := q.d.maps.punts.put(0, puntValue{}); err != nil {
			return err
		}
		return removePunt(q.d.ns.nl)
	}
	v := puntValue{Ifindex: uint32(index), Until: q.d.maps.punts.now[0].Until}
	if p != nil {
		v.NSLPID, v.Burst = uint32(p.NSLPID), uint64(time.Second/10)
		v.Interval = uint64(time.Second) / uint64(max(p.Rate, 1))
	}
	if err := q.d.maps.punts.put(0, v); err != nil {
		return err
	}
	if sleepers && !q.read && q.fd == 0 { // what comes from now on waits for the agent
		var err error
		if q.fd, err = q.socket(); err != nil {
			return err
		}
	}
	select {
	case q.made <- struct{}{}:
	default:
	}
	return nil
}

// needPunt makes the punt port's two devices, which have no addresses. An agent that ended
// while it did so, or an operator, may have left them down, or one without the other.
func needPunt(nl *netlink.Handle) (index int, err error) {
	_, one := nl.LinkByName(puntDevice)
	_, other := nl.LinkByName(puntReader)
	if one != nil || other != nil {
		if err := removePunt(nl); err != nil {
			return 0, err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = puntDevice, 65535
		if err := nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: puntReader, PeerMTU: 65535}); err != nil {
			return 0, fmt.Errorf("make the punt port %s: %w", puntDevice, err)
		}
	}
	for _, name := range []string{puntReader, puntDevice} {
		if err := sysctl("ipv6/conf/"+name+"/addr_gen_mode", "1"); err != nil && !errors.Is(err, unix.ENOENT) {
			return 0, err
		}
		l, err := nl.LinkByName(name)
		if err != nil {
			return 0, fmt.Errorf("find device %s: %w", name, err)
		}
		if l.Attrs().Flags&net.FlagUp == 0 {
			if err := nl.LinkSetUp(l); err != nil {
				return 0, fmt.Errorf("set %s up: %w", name, err)
			}
		}
		index = l.Attrs().Index
	}
	return index, nil
}

func removePunt(nl *netlink.Handle) error {
	for _, name := range []string{puntDevice, puntReader} { // the second goes with the first, unless that is elsewhere
		l, err := nl.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find device %s: %w", name, err)
		}
		if err := nl.LinkDel(l); err != nil {
			return fmt.Errorf("remove device %s: %w", name, err)
		}
	}
	return nil
}

// Punted implements onpath.PuntReader.
func (q *puntPort) Punted(ctx context.Context, take func(onpath.Punted)) error {
	for ctx.Err() == nil {
		fd, err := q.openPunt()
		if err == nil {
			err = q.readPunt(ctx, fd, take)
			_ = unix.Close(fd)
		}
		q.d.mu.Lock()
		q.read = false
		q.d.mu.Unlock()
		if err != nil && !errors.Is(err, errNoPunt) {
			q.d.opts.Log.Warn("the punt port cannot be read; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-q.made:
		case <-time.After(puntTick / 4):
		}
	}
	return ctx.Err()
}

var errNoPunt = errors.New("there is no punt port")

// let closes the agent's end, if nobody reads it. Callers hold d.mu.
func (q *puntPort) let() {
	if q.fd != 0 {
		_ = unix.Close(q.fd)
		q.fd = 0
	}
}

// openPunt opens the agent's end.
func (q *puntPort) openPunt() (fd int, err error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.d.closed || q.d.maps == nil || q.d.maps.punts.now[0].Ifindex == 0 {
		return -1, errNoPunt
	}
	if q.read = true; q.fd != 0 {
		fd, q.fd = q.fd, 0
		return fd, nil
	}
	err = q.d.ns.do(func() error { fd, err = q.socket(); return err })
	return fd, err
}

// socket is one at the agent's end. It runs in the driver's namespace.
func (q *puntPort) socket() (fd int, err error) {
	l, err := q.d.ns.nl.LinkByName(puntReader)
	if err != nil {
		return 0, errNoPunt
	}
	if fd, err = packetSocket(unix.ETH_P_ALL, l.Attrs().Index); err != nil {
		return 0, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, puntBuffer/2); err != nil {
		_ = unix.Close(fd)
		return 0, fmt.Errorf("prepare the punt port's socket: %w", err)
	}
	return fd, nil
}

// readPunt hands packets over until the port is gone.
func (q *puntPort) readPunt(ctx context.Context, fd int, take func(onpath.Punted)) error {
	defer func() { _ = q.leasePunt(0) }()
	q.taking.Lock()
	q.from, q.take, q.buffer = fd, take, make([]byte, frameHeader+packetFrames)
	q.taking.Unlock()
	defer func() {
		q.taking.Lock()
		defer q.taking.Unlock()
		q.from, q.take, q.buffer = 0, nil, nil
	}()
	var leased time.Time
	for ctx.Err() == nil {
		if time.Since(leased) >= puntTick {
			leased = time.Now()
			if err := q.leasePunt(puntLease); err != nil {
				return err
			}
			q.tellLost(fd)
		}
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(puntTick/4/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		q.taking.Lock()
		err := q.drain()
		q.taking.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// tellLost says how many packets came faster than they were taken, since it said so last.
func (q *puntPort) tellLost(fd int) {
	if s, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil && s.Drops > 0 {
		q.d.opts.Log.Warn("packets for sleeping instances, or of signalling, came faster than the agent takes them", "lost", s.Drops)
	}
}

// drain hands over all that waits at the port, and not what comes all the time meanwhile.
// Callers hold taking.
func (q *puntPort) drain() error {
	for left := puntFrames; left > 0 && q.from != 0; left-- {
		n, _, err := unix.Recvfrom(q.from, q.buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		}
		if p, ok := puntedOf(q.buffer[:n]); ok {
			q.take(p)
			if p.Frame != nil {
				q.counting.Lock()
				q.taken[p.Vport]++
				q.counting.Unlock()
			}
		}
	}
	return nil
}

// puntedOf reads a frame at the port.
func puntedOf(b []byte) (p onpath.Punted, ok bool) {
	if len(b) < frameHeader+20 {
		return p, false
	}
	frame, b := b, b[vnetHeader:]
	if b[0] == 0x02 && b[1] == 0x6f && b[2] == puntAsleep {
		p.Vport = onpath.VportID(binary.BigEndian.Uint32(b[2:]) & onpath.MaxID24)
		p.Packet, p.Frame = b[14:], frame
		return p, true
	}
	if b[0] != 0x02 || b[1] != 0x6f || b[6] != 0x02 || b[7] != 0x6f || b[8] != puntSignalling {
		return p, false
	}
	p.Device = int(binary.BigEndian.Uint32(b[2:]))
	p.Vport = onpath.VportID(binary.BigEndian.Uint32(b[8:]) & onpath.MaxID24)
	p.Packet = b[14:]
	return p, true
}

// leasePunt says how long somebody reads from now on.
func (q *puntPort) leasePunt(long time.Duration) error {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.d.closed || q.d.maps == nil {
		return errNoPunt
	}
	v := q.d.maps.punts.now[0]
	if v.Ifindex == 0 {
		return errNoPunt
	}
	v.Until = uint32((monotonic() + uint64(long)) / uint64(time.Second))
	if long == 0 {
		v.Until--
	}
	return q.d.maps.punts.put(0, v)
}
