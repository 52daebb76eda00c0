package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	puntBuffer = 256 << 10
)

// puntPort is the driver's part that hands packets to the agent.
type puntPort struct{ d *Driver }

// applyPunt makes the port and says what goes there, or takes it away. It runs in the
// driver's namespace, with q.d.mu held.
func (q puntPort) applyPunt(p *onpath.Punt) error {
	if p == nil {
		if err := q.d.maps.punts.put(0, puntValue{}); err != nil {
			return err
		}
		return removePunt(q.d.ns.nl)
	}
	index, err := needPunt(q.d.ns.nl)
	if err != nil {
		return err
	}
	interval := uint64(time.Second) / uint64(max(p.Rate, 1))
	return q.d.maps.punts.put(0, puntValue{
		Ifindex: uint32(index), NSLPID: uint32(p.NSLPID), Until: q.d.maps.punts.now[0].Until,
		Interval: interval, Burst: uint64(time.Second / 10),
	})
}

// needPunt makes the punt port's two devices, which have no addresses.
func needPunt(nl *netlink.Handle) (index int, err error) {
	if l, err := nl.LinkByName(puntDevice); err == nil {
		return l.Attrs().Index, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = puntDevice, 65535
	if err := nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: puntReader, PeerMTU: 65535}); err != nil {
		return 0, fmt.Errorf("make the punt port %s: %w", puntDevice, err)
	}
	for _, name := range []string{puntReader, puntDevice} {
		if err := sysctl("ipv6/conf/"+name+"/addr_gen_mode", "1"); err != nil && !errors.Is(err, unix.ENOENT) {
			return 0, err
		}
		l, err := nl.LinkByName(name)
		if err != nil {
			return 0, fmt.Errorf("find device %s: %w", name, err)
		}
		if err := nl.LinkSetUp(l); err != nil {
			return 0, fmt.Errorf("set %s up: %w", name, err)
		}
		index = l.Attrs().Index
	}
	return index, nil
}

func removePunt(nl *netlink.Handle) error {
	l, err := nl.LinkByName(puntDevice)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return fmt.Errorf("find device %s: %w", puntDevice, err)
	}
	if err := nl.LinkDel(l); err != nil {
		return fmt.Errorf("remove device %s: %w", puntDevice, err)
	}
	return nil
}

// Punted implements onpath.PuntReader.
func (q puntPort) Punted(ctx context.Context, take func(onpath.Punted)) error {
	buffer := make([]byte, 1<<16)
	for ctx.Err() == nil {
		fd, err := q.openPunt()
		if err == nil {
			err = q.readPunt(ctx, fd, buffer, take)
			_ = unix.Close(fd)
		}
		if err != nil && !errors.Is(err, errNoPunt) {
			q.d.opts.Log.Warn("the punt port cannot be read; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(puntTick / 4):
		}
	}
	return ctx.Err()
}

var errNoPunt = errors.New("there is no punt port")

// openPunt opens the agent's end.
func (q puntPort) openPunt() (fd int, err error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.d.closed || q.d.maps == nil || q.d.maps.punts.now[0].Ifindex == 0 {
		return -1, errNoPunt
	}
	err = q.d.ns.do(func() error {
		l, err := q.d.ns.nl.LinkByName(puntReader)
		if err != nil {
			return errNoPunt
		}
		all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		wait := unix.NsecToTimeval(int64(puntTick / 4))
		err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, puntBuffer/2),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index}))
		if err != nil {
			_ = unix.Close(fd)
		}
		return err
	})
	return fd, err
}

// readPunt hands packets over until the port is gone.
func (q puntPort) readPunt(ctx context.Context, fd int, buffer []byte, take func(onpath.Punted)) error {
	defer func() { _ = q.leasePunt(0) }()
	var leased time.Time
	for ctx.Err() == nil {
		if time.Since(leased) >= puntTick {
			leased = time.Now()
			if err := q.leasePunt(puntLease); err != nil {
				return err
			}
		}
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if p, ok := puntedOf(buffer[:n]); ok {
			take(p)
		}
	}
	return nil
}

// puntedOf reads a frame at the port.
func puntedOf(b []byte) (p onpath.Punted, ok bool) {
	if len(b) < 14+20 || b[0] != 0x02 || b[1] != 0x6f || b[6] != 0x02 || b[7] != 0x6f || b[8] != puntSignalling {
		return p, false
	}
	p.Device = int(binary.BigEndian.Uint32(b[2:]))
	p.Vport = onpath.VportID(binary.BigEndian.Uint32(b[8:]) & onpath.MaxID24)
	p.Packet = b[14:]
	return p, true
}

// leasePunt says how long somebody reads from now on.
func (q puntPort) leasePunt(long time.Duration) error {
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
