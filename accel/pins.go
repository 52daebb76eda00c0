package accel

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/accel/vanish"
	"github.com/onpath/onpath/internal/bpffs"
	"github.com/onpath/onpath/internal/netnsrun"
)

// pinRoot is where translators of all nodes of a machine are kept.
const pinRoot = "/sys/fs/bpf/onpath-relays"

// PinPath is where translators of the process with a control socket are kept.
func PinPath(socket string) string {
	return filepath.Join(pinRoot, fmt.Sprintf("%x", sha256.Sum256([]byte(socket)))[:16])
}

// MakePins makes that folder.
func MakePins(socket string) (string, error) {
	dir := PinPath(socket)
	err := bpffs.Need(pinRoot)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("keep what takes the place of relays: %w", err)
	}
	return dir, nil
}

// RemovePins takes that folder away with all that is in it: connections that relays have left end.
func RemovePins(socket string) error {
	err := os.RemoveAll(PinPath(socket))
	_ = os.Remove(pinRoot) // not empty: of other nodes
	return err
}

// nodeLegs is the folder of the translator in the node's own network namespace.
const nodeLegs = "legs"

// pins are the translators of a process, by instance.
type pins struct {
	folder string

	mu    sync.Mutex
	open  map[string]*vanish.Translator
	ports []ownPort
}

// ownPort is a port that a half has, bound by a socket, so that the kernel chooses it for no new leg.
type ownPort struct {
	in     *vanish.Translator
	half   vanish.Key
	socket int
}

// hold holds the port of a half's relay.
func (p *pins) hold(in *vanish.Translator, half vanish.Key) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	local := half.To()
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(local.Port()), Addr: local.Addr().As4()}); err != nil {
		unix.Close(fd) // another connection has the port as well, with another peer
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports = append(p.ports, ownPort{in, half, fd})
}

// letGo lets go of ports whose half is gone.
func (p *pins) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports = slices.DeleteFunc(p.ports, func(h ownPort) bool {
		_, there := h.in.Get(h.half)
		if !there {
			unix.Close(h.socket)
		}
		return !there
	})
}

// translator opens the one of an instance.
func (p *pins) translator(id string) (*vanish.Translator, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.folder == "" {
		return nil, errors.New("there is no folder to keep translators in")
	}
	if t := p.open[id]; t != nil {
		return t, nil
	}
	t, err := vanish.Open(filepath.Join(p.folder, id))
	if err != nil {
		return nil, err
	}
	if p.open == nil {
		p.open = map[string]*vanish.Translator{}
	}
	p.open[id] = t
	return t, nil
}

// resetsArrive is how long ends have to send something, or to take the reset that they are sent.
const resetsArrive = 200 * time.Millisecond

// end resets the connections of a translator, in its network namespace, and takes it away.
func (p *pins) end(id string, ns *netnsrun.Namespace) {
	p.mu.Lock()
	t := p.open[id]
	delete(p.open, id)
	p.mu.Unlock()
	if t == nil {
		return
	}
	enter := func(do func() error) error { return do() }
	if ns != nil {
		enter = ns.Do
	}
	var n int
	_ = enter(func() (err error) { n, err = t.ResetAll(); return err })
	if n > 0 {
		<-after(resetsArrive)
	}
	_ = t.Close()
	if err := os.RemoveAll(filepath.Join(p.folder, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
}

// sweepEvery is how often connections are looked for that are over.
const sweepEvery = 5 * time.Second

// sweep deletes connections without a relay that are over, and counts the others.
func (h *Host) sweep() {
	ticks := every(sweepEvery)
	defer ticks.Stop()
	for {
		select {
		case <-h.ended:
			return
		case <-ticks.C:
		}
		left, err := vanish.Sweep(h.pins.all())
		h.pins.letGo()
		if err != nil {
			h.log.Warn("cannot read which connections go on without a relay", "err", err)
			continue
		}
		h.without.Store(int64(left))
	}
}

func (p *pins) all() []*vanish.Translator {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.open))
}

// stepOut is where legs of other relays come in and go on.
func (h *Host) stepOut(wanted func(string, netip.AddrPort) bool) *StepOut {
	t, err := h.pins.translator(nodeLegs)
	if err != nil {
		h.log.Warn("relays stay in their connections", "err", err)
		return nil
	}
	return &StepOut{Legs: t, Wanted: wanted, Hold: h.pins.hold}
}

// stepOutOf is where connections of an instance come in and go on.
func (h *Host) stepOutOf(id string, x *hosted) *StepOut {
	at := h.stepOut(x.vanishes)
	if at == nil {
		return nil
	}
	var vport int
	port := &vanish.Vport{}
	err := x.ns.Do(func() error {
		device, err := netlink.LinkByName(x.is.Device)
		if err != nil {
			return err
		}
		is := device.Attrs()
		at.Device, vport = is.Index, is.ParentIndex
		copy(port.MACs[6:], is.HardwareAddr)
		at.Clients, err = h.pins.translator(id)
		return err
	})
	if err != nil {
		h.log.Warn("a relay stays in its connections", "instance", id, "err", err)
		return nil
	}
	// The other end of the device; where it is not in the node's namespace, nothing crosses over.
	if link, err := netlink.LinkByIndex(vport); err == nil && link.Type() == "veth" {
		port.Ifindex = vport
		copy(port.MACs[:], link.Attrs().HardwareAddr)
		at.Vport = port
	}
	at.MTU = h.mtuOf(x)
	return at
}

// mtuOf reads the MTU of an instance's device, which may change, once a second at most.
func (h *Host) mtuOf(x *hosted) func() int {
	var mu sync.Mutex
	var read time.Time
	mtu := 1280 // less than any
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		if now().Sub(read) < time.Second {
			return mtu
		}
		read = now()
		_ = x.ns.Do(func() error {
			device, err := net.InterfaceByName(x.is.Device)
			if err == nil {
				mtu = device.MTU
			}
			return err
		})
		return mtu
	}
}
