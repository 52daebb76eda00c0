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
// whether containers leave free what is kept of the disk, and else, if together they wrote as
// much beyond their resources.disk, the one ended that wrote the most; started anew it has
// written nothing.
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

// freeDisk ends the container that wrote most, if it is containers that fill the disk.
func (d *Driver) freeDisk(ctx context.Context, kept onpath.Size) bool {
	d.mu.Lock()
	var all []*process
	for _, p := range d.procs {
		all = append(all, p)
	}
	d.mu.Unlock()
	beyond := make([]onpath.Size, len(all))
	sn := d.client.SnapshotService(d.opt.Snapshotter)
	for i, p := range all {
		if u, err := sn.Usage(d.scope(ctx), p.id); err == nil && p.Pid() != 0 {
			beyond[i] = onpath.Size(u.Size) - p.allowedDisk()
		}
	}
	at := filler(beyond, kept)
	if at < 0 {
		return false
	}
	worst, most := all[at], beyond[at]
	worst.endFor(fmt.Sprintf("the node's disk is full, and it wrote %s more than its resources.disk", most.Rounded()))
	d.log.Warn("the disk is full: the instance that wrote most is ended", "instance", worst.id, "beyond", most)
	return true
}

// filler picks the instance furthest over its disk limit. It is -1 if all excess together
// is below kept: then something else fills the disk.
func filler(beyond []onpath.Size, kept onpath.Size) int {
	worst, sum := -1, onpath.Size(0)
	for i, b := range beyond {
		if b <= 0 {
			continue
		}
		if sum += b; worst < 0 || b > beyond[worst] {
			worst = i
		}
	}
	if sum < kept {
		return -1
	}
	return worst
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
