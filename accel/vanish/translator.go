package vanish

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/packet"
)

//go:generate make -B -C ../../bpf ../accel/vanish/vanish_bpfel.o

//go:embed vanish_bpfel.o
var object []byte

const (
	programName = "onpath_vanish"
	ownName     = "onpath_own" // for what leaves
	mapName     = "vanish_halves"
	scratchName = "vanish_scratch"
	linkPrefix  = "link-"
	ownPrefix   = "own-"
)

// Translator is the program in one network namespace, with the halves that it translates.
type Translator struct {
	dir     string // where all is pinned; "": it ends with the process
	program *ebpf.Program
	own     *ebpf.Program
	halves  *ebpf.Map
	scratch *ebpf.Map

	mu    sync.Mutex
	links map[string]link.Link // by the name of their pin
}

// Open loads the program, or finds what an earlier process has pinned in a folder.
func Open(dir string) (*Translator, error) {
	t := &Translator{dir: dir, links: map[string]link.Link{}}
	err := t.find()
	if dir == "" || errors.Is(err, os.ErrNotExist) {
		err = t.load()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load the relay's translator: %w", err), t.Close())
	}
	return t, nil
}

func (t *Translator) load() error {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return err
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return err
	}
	defer c.Close()
	t.program, t.own = c.DetachProgram(programName), c.DetachProgram(ownName)
	t.halves, t.scratch = c.DetachMap(mapName), c.DetachMap(scratchName)
	if t.dir == "" {
		return nil
	}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	return errors.Join(t.halves.Pin(t.file(mapName)), t.own.Pin(t.file(ownName)), t.program.Pin(t.file(programName)))
}

func (t *Translator) file(name string) string { return filepath.Join(t.dir, name) }

// find opens what is pinned: the map, the program, and where it stands.
func (t *Translator) find() (err error) {
	if t.dir == "" {
		return nil
	}
	if t.program, err = ebpf.LoadPinnedProgram(t.file(programName), nil); err != nil {
		return err
	}
	if t.halves, err = ebpf.LoadPinnedMap(t.file(mapName), nil); err != nil {
		return err
	}
	if t.own, err = ebpf.LoadPinnedProgram(t.file(ownName), nil); err != nil {
		return err
	}
	files, err := filepath.Glob(t.file("*-*"))
	for _, f := range files {
		l, failed := link.LoadPinnedLink(f, nil)
		if failed != nil {
			return fmt.Errorf("open %s: %w", f, failed)
		}
		t.links[filepath.Base(f)] = l
	}
	return errors.Join(err, t.clean())
}

// Attach has the program see what comes in by a device. It is called in the translator's network
// namespace. The program stands before all others there.
func (t *Translator) Attach(ifindex int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(
		t.attach(linkPrefix, link.TCXOptions{Interface: ifindex, Program: t.program, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()}),
		t.attach(ownPrefix, link.TCXOptions{Interface: ifindex, Program: t.own, Attach: ebpf.AttachTCXEgress, Anchor: link.Tail()}))
}

// attach makes a link. Callers hold mu.
func (t *Translator) attach(prefix string, o link.TCXOptions) error {
	name := prefix + strconv.Itoa(o.Interface)
	if t.links[name] != nil {
		return nil
	}
	l, err := link.AttachTCX(o)
	if err != nil {
		return fmt.Errorf("attach the relay's translator to device %d: %w", o.Interface, err)
	}
	if t.dir != "" {
		if err := l.Pin(t.file(name)); err != nil {
			return errors.Join(fmt.Errorf("keep the relay's translator at device %d: %w", o.Interface, err), l.Close())
		}
	}
	t.links[name] = l
	return nil
}

// Put has a half be so.
func (t *Translator) Put(k Key, h Half) error {
	if err := t.halves.Put(k, h); err != nil {
		return fmt.Errorf("write how %s is translated: %w", k.From(), err)
	}
	return nil
}

// Get reads a half; ok is false where there is none.
func (t *Translator) Get(k Key) (h Half, ok bool) {
	ok = t.halves.Lookup(k, &h) == nil
	return h, ok
}

// Delete forgets a half. The kernel resets what comes from it from now on.
func (t *Translator) Delete(k Key) {
	_ = t.halves.Delete(k) // it may be gone: the program deletes halves, too
}

// All reads all halves.
func (t *Translator) All() (map[Key]Half, error) {
	all, k, h := map[Key]Half{}, Key{}, Half{}
	entries := t.halves.Iterate()
	for entries.Next(&k, &h) {
		all[k] = h
	}
	err := entries.Err()
	if errors.Is(err, ebpf.ErrIterationAborted) { // many came and went meanwhile; the next time sees them
		err = nil
	}
	return all, err
}

// Close lets go of it. What is pinned goes on.
func (t *Translator) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, l := range t.links {
		errs = append(errs, l.Close())
	}
	for _, m := range []*ebpf.Map{t.halves, t.scratch} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	for _, p := range []*ebpf.Program{t.program, t.own} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// ResetAll ends all connections, in the translator's network namespace, and returns their number of
// halves. An end that sends something now is reset by the kernel; one that rests gets a reset here.
func (t *Translator) ResetAll() (int, error) {
	all, err := t.All()
	if err != nil || len(all) == 0 {
		return 0, err
	}
	for k := range all {
		t.Delete(k)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return len(all), os.NewSyscallError("open a socket to reset connections: socket", err)
	}
	defer unix.Close(fd)
	for k, h := range all {
		if h.State == Translate && h.Packets > 0 {
			_ = unix.Sendto(fd, resetFor(k, h.SeenAck), 0, &unix.SockaddrInet4{Addr: k.Src}) // lost, the next packet is answered
		}
	}
	return len(all), nil
}

// resetFor is a reset for the end of a half, which has acknowledged bytes up to a number.
func resetFor(k Key, acknowledged uint32) []byte {
	const ip, tcp, rst = 20, 20, 0x04
	b := make([]byte, ip+tcp)
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_TCP
	copy(b[12:], k.Dst[:])
	copy(b[16:], k.Src[:])
	s := b[ip:]
	copy(s, k.Dport[:])
	copy(s[2:], k.Sport[:])
	binary.BigEndian.PutUint32(s[4:], acknowledged)
	s[12], s[13] = tcp/4<<4, rst
	from, to := netip.AddrFrom4(k.Dst), netip.AddrFrom4(k.Src)
	binary.BigEndian.PutUint16(s[16:], ^packet.Sum(packet.PseudoSum(from, to, unix.IPPROTO_TCP, tcp), s))
	return b
}
