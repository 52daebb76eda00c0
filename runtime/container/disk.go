package container

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// File systems of containers bound nobody's writing. So it is looked for every diskEvery
// whether containers leave free what is kept of the disk, and else the one ended that wrote
// the most beyond its resources.disk, if that is as much; started anew it has written nothing.
const (
	diskEvery    = time.Second
	diskClears   = 10 * time.Second // until what one has written is gone
	diskKeptPart = 20               // of the disk
	diskKeptMost = 1 << 30          // bytes
)

func (d *Driver) keepDisk(ctx context.Context) {
	wait := diskEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = diskEvery
		if kept, short := d.diskShort(); short && d.freeDisk(ctx, kept) {
			wait = diskClears
		}
	}
}

// diskShort says how much of the disk that containers write to is kept, and whether less
// than that is free.
func (d *Driver) diskShort() (kept onpath.Size, short bool) {
	var s unix.Statfs_t
	if unix.Statfs(d.opt.ContainerdDir, &s) != nil && unix.Statfs(d.opt.StateDir, &s) != nil {
		return 0, false
	}
	block := uint64(s.Bsize)
	kept = onpath.Size(min(s.Blocks*block/diskKeptPart, diskKeptMost))
	return kept, onpath.Size(s.Bavail*block) < kept
}

// freeDisk ends the container that wrote most, if one wrote as much as most.
func (d *Driver) freeDisk(ctx context.Context, most onpath.Size) bool {
	d.mu.Lock()
	var all []*process
	for _, p := range d.procs {
		all = append(all, p)
	}
	d.mu.Unlock()
	var worst *process
	sn := d.client.SnapshotService(d.opt.Snapshotter)
	for _, p := range all {
		u, err := sn.Usage(d.scope(ctx), p.id)
		if beyond := onpath.Size(u.Size) - p.allowedDisk(); err == nil && beyond > most && p.Pid() != 0 {
			worst, most = p, beyond
		}
	}
	if worst == nil {
		return false
	}
	worst.endFor(fmt.Sprintf("the node's disk is full, and it wrote %s more than its resources.disk", most.Rounded()))
	d.log.Warn("the disk is full: the instance that wrote most is ended", "instance", worst.id, "beyond", most)
	return true
}

// allowedDisk is resources.disk.
func (p *process) allowedDisk() onpath.Size {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.disk
}

// endFor kills the program for a reason.
func (p *process) endFor(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid != 0 && syscall.Kill(p.pid, syscall.SIGKILL) == nil {
		p.endedFor = why
	}
}

// EndedFor implements onpath.Judged.
func (p *process) EndedFor() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endedFor
}
