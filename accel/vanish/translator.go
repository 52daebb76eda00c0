package vanish

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

//go:generate make -B -C ../../bpf ../accel/vanish/vanish_bpfel.o

//go:embed vanish_bpfel.o
var object []byte

const (
	programName = "onpath_vanish"
	mapName     = "vanish_halves"
	scratchName = "vanish_scratch"
	linkPrefix  = "link-"
)

// Translator is the program in one network namespace, with the halves that it translates.
type Translator struct {
	dir     string // where all is pinned; "": it ends with the process
	program *ebpf.Program
	halves  *ebpf.Map
	scratch *ebpf.Map

	mu    sync.Mutex
	links map[int]link.Link // by device
}

// Open loads the program, or finds what an earlier process has pinned in a folder.
func Open(dir string) (*Translator, error) {
	t := &Translator{dir: dir, links: map[int]link.Link{}}
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
	t.program, t.halves, t.scratch = c.DetachProgram(programName), c.DetachMap(mapName), c.DetachMap(scratchName)
	if t.dir == "" {
		return nil
	}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	return errors.Join(t.halves.Pin(t.file(mapName)), t.program.Pin(t.file(programName)))
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
	files, err := filepath.Glob(t.file(linkPrefix + "*"))
	for _, f := range files {
		ifindex, failed := strconv.Atoi(strings.TrimPrefix(filepath.Base(f), linkPrefix))
		if failed != nil {
			continue
		}
		l, failed := link.LoadPinnedLink(f, nil)
		if failed != nil {
			return fmt.Errorf("open %s: %w", f, failed)
		}
		t.links[ifindex] = l
	}
	return err
}

// Attach has the program see what comes in by a device. It is called in the translator's network
// namespace. The program stands before all others there.
func (t *Translator) Attach(ifindex int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.links[ifindex] != nil {
		return nil
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: t.program, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
	if err != nil {
		return fmt.Errorf("attach the relay's translator to device %d: %w", ifindex, err)
	}
	if t.dir != "" {
		if err := l.Pin(t.file(linkPrefix + strconv.Itoa(ifindex))); err != nil {
			return errors.Join(fmt.Errorf("keep the relay's translator at device %d: %w", ifindex, err), l.Close())
		}
	}
	t.links[ifindex] = l
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
	if t.program != nil {
		errs = append(errs, t.program.Close())
	}
	return errors.Join(errs...)
}
