package wasm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/engine/wasm"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/outdial"
)

// What modules of a function use that an engine is given by the agent.
const (
	blockBlob   = "blob/1"
	blockFetch  = "fetch/1"
	blockNotify = "notify/1"
)

// supplyAgain is the pause before a connection to an engine is made anew; dialTime is how long
// a host may take.
const (
	supplyAgain = time.Second
	dialTime    = 10 * time.Second
)

// uses says whether a module of the function uses a block.
func uses(s *onpath.FunctionSpec, blocks ...string) bool {
	return slices.ContainsFunc(s.Wasm.Modules, func(m onpath.WasmModule) bool {
		read, err := wasm.Read(m.Code)
		return err == nil && slices.ContainsFunc(read.Blocks(), func(b string) bool { return slices.Contains(blocks, b) })
	})
}

// supply opens connections for the engine's modules, as long as it runs and they need any.
func (p *process) supply() {
	ctx, cancel := context.WithCancel(p.d.ctx)
	defer cancel()
	p.d.wg.Go(func() {
		select {
		case <-p.done:
			cancel()
		case <-ctx.Done():
		}
	})
	for ctx.Err() == nil {
		again := p.supplyOnce(ctx)
		select {
		case <-p.needs:
		case <-again:
		case <-ctx.Done():
		}
	}
}

// supplyOnce opens connections until the engine closes its socket, and says when to try again;
// nil: no module needs any, which shows only by reading all of them.
func (p *process) supplyOnce(ctx context.Context) (again <-chan time.Time) {
	s := p.spec()
	if !uses(&s, blockFetch, blockNotify) {
		return nil
	}
	_ = p.d.Control(p.record.ID).Supply(ctx, p.open)
	return after(supplyAgain)
}

// open opens one connection. The engine has compared the host already; this comparison counts.
func (p *process) open(ctx context.Context, w control.Want) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	switch {
	case w.Notify:
		var c net.Conn
		err := netnsrun.Do(p.record.NetNS, func() (err error) {
			c, err = net.Dial("unix", onpath.NotifySocket)
			return err
		})
		return fileOf(c, err)
	case p.mayDial(w.Dial):
		f, err := fileOf(p.d.opt.Dial(ctx, "tcp", w.Dial))
		if errors.Is(err, outdial.ErrRefused) {
			err = &control.RefusedError{Err: err}
		}
		return f, err
	}
	return nil, fmt.Errorf("the function does not name %q to fetch from", w.Dial)
}

func (p *process) mayDial(address string) bool {
	s := p.spec()
	return slices.ContainsFunc(s.Wasm.Modules, func(m onpath.WasmModule) bool { return m.MayFetch(address) })
}

// fileOf is a connection as a file that can be handed over.
func fileOf(c net.Conn, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	defer c.Close()
	f, ok := c.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("a connection of type %T cannot be handed over", c)
	}
	return f.File()
}

// blobs is the folder of the files of blobs. Each outlives its instance's engine, if that
// crashes, and goes with the instance.
const blobs = ".blobs"

// blobFile is that of an instance, whatever number its engine has.
func (d *Driver) blobFile(labels map[string]string, id string) string {
	name := id
	if labels["onpath.instance"] != "" { // as the agent labels its own
		name = labels["onpath.tenant"] + "\x00" + labels["onpath.instance"] + "\x00" + labels["onpath.uid"]
	}
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(d.dir(blobs), hex.EncodeToString(sum[:16]))
}

// leastFree is the part of a disk that blobs leave to others.
const leastFree = 4

// giveDisk hands the engine the file of its blobs, if its modules have any.
func (d *Driver) giveDisk(ctx context.Context, r *record, s *onpath.FunctionSpec) error {
	if !uses(s, blockBlob) {
		return nil
	}
	path := d.blobFile(r.Labels, r.ID)
	if err := os.MkdirAll(d.dir(blobs), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the file of the blobs: %w", err)
	}
	defer f.Close()
	size, err := reserve(f, min(cmp.Or(s.Wasm.Disk, onpath.DefaultModuleDisk), d.opt.Disk))
	if err != nil {
		return err
	}
	return d.Control(r.ID).Disk(ctx, f, size)
}

// reserve gives a file the room that it may have: at most so much, and a part of what is free.
// Others find it taken, so that all together never have more than the disk.
func reserve(f *os.File, most onpath.Size) (onpath.Size, error) {
	var disk unix.Statfs_t
	var own unix.Stat_t
	if err := errors.Join(unix.Fstatfs(int(f.Fd()), &disk), unix.Fstat(int(f.Fd()), &own)); err != nil {
		return 0, fmt.Errorf("ask for the room that the disk has: %w", err)
	}
	has := max(own.Size, own.Blocks*512)
	size := min(int64(most), has+int64(disk.Bavail)*disk.Bsize/leastFree)
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) { // on a disk that cannot, each has what it writes
		return 0, fmt.Errorf("reserve %d bytes of the disk for blobs: %w", size, err)
	}
	return onpath.Size(size), nil
}

// dropDisk deletes the file of an instance's blobs; a crashed one's waits for the next.
func (p *process) dropDisk(crashed bool) error {
	if crashed {
		p.d.wg.Go(p.d.dropOrphans)
		return nil
	}
	if err := os.Remove(p.d.blobFile(p.record.Labels, p.record.ID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// orphanTime is how long the blobs of a crashed engine wait for the next one.
const orphanTime = 10 * time.Minute

// dropOrphans deletes the blobs of instances that do not come back in time.
func (d *Driver) dropOrphans() {
	select {
	case <-after(orphanTime):
	case <-d.ctx.Done():
		return
	}
	files, _ := filepath.Glob(filepath.Join(d.dir(blobs), "*"))
	if len(files) == 0 {
		return
	}
	has := map[string]bool{}
	d.mu.Lock()
	for _, p := range d.procs {
		has[d.blobFile(p.record.Labels, p.record.ID)] = true
	}
	d.mu.Unlock()
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && !has[f] && age(st.ModTime()) >= orphanTime {
			_ = os.Remove(f)
		}
	}
}
