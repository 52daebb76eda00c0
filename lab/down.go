package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long processes have to end after SIGTERM.
const grace = 3 * time.Second

// Down ends the lab's commands and all that runs in its hosts, and removes
// hosts, links and files. It also removes what an interrupted Up or Down left.
// Nothing else is touched.
func (l *Lab) Down(ctx context.Context) error {
	return l.alone(func() error { return l.remove(ctx) })
}

// End ends the lab's commands and all that runs in its hosts, and leaves hosts
// and links, for what has to be put in order in them before Down.
func (l *Lab) End(ctx context.Context) error {
	return l.alone(func() error {
		if err := l.endProcesses(ctx); err != nil {
			return l.notDown(ctx, err)
		}
		return nil
	})
}

// notDown says that an end was interrupted, or what went wrong.
func (l *Lab) notDown(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("lab %s is not down: interrupted; onpath lab down %s goes on: %w", l.Name(), l.Name(), context.Cause(ctx))
	}
	return fmt.Errorf("lab %s: %w", l.Name(), err)
}

// alone does something with the lab as it is now, which nobody else changes
// meanwhile.
func (l *Lab) alone(do func() error) error {
	if err := needRoot(); err != nil {
		return err
	}
	unlock, err := l.dir.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if l.state, err = l.dir.load(); err != nil {
		return err
	}
	return do()
}

// remove takes everything away; the state file goes last, so that it can be
// repeated.
func (l *Lab) remove(ctx context.Context) error {
	owner, err := identify(os.Getpid())
	if err != nil {
		return fmt.Errorf("lab: who am I: %w", err)
	}
	l.Phase, l.Owner = PhaseStopping, owner
	if err := l.dir.save(l.state); err != nil {
		return err
	}
	if err := l.endProcesses(ctx); err != nil {
		return l.notDown(ctx, err)
	}
	if err := l.unmount(); err != nil {
		return fmt.Errorf("lab %s: %w", l.Name(), err)
	}
	if err := os.RemoveAll(string(l.dir)); err != nil {
		return fmt.Errorf("lab %s: %w", l.Name(), err)
	}
	return nil
}

// endProcesses ends recorded processes, then whatever else is in the hosts.
func (l *Lab) endProcesses(ctx context.Context) error {
	deadline := time.Now().Add(grace)
	sig := unix.SIGTERM
	for round := 0; ; round++ {
		left := l.running()
		if len(left) == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d processes still run: %w", len(left), err)
		}
		if time.Now().After(deadline) {
			if sig == unix.SIGKILL {
				return fmt.Errorf("process %d does not end", left[0].PID)
			}
			sig, round, deadline = unix.SIGKILL, 0, time.Now().Add(grace)
		}
		if round == 0 {
			for _, p := range left {
				p.signal(sig)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// signal reaches the process only if it still is the same one.
func (i identity) signal(sig unix.Signal) {
	fd, err := unix.PidfdOpen(i.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if i.alive() { // after the descriptor is held, the number cannot change hands
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// running are the lab's processes that live: those it started, and those whose
// network or mount namespace is one of its hosts'. The caller is never among
// them.
func (l *Lab) running() []identity {
	ours := map[fileID]bool{}
	for _, node := range l.nodes() {
		for _, path := range []string{l.dir.net(node), l.dir.mnt(node)} {
			if id, ok := identifyFile(path); ok && l.isNamespace(path) {
				ours[id] = true
			}
		}
	}
	var out []identity
	for _, p := range l.Processes {
		if p.alive() {
			out = append(out, p.identity)
		}
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		net, ok1 := identifyFile("/proc/" + e.Name() + "/ns/net")
		mnt, ok2 := identifyFile("/proc/" + e.Name() + "/ns/mnt")
		if !(ok1 && ours[net]) && !(ok2 && ours[mnt]) {
			continue
		}
		if id, err := identify(pid); err == nil && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// isNamespace tells a bound namespace from the empty file it is bound to.
func (l *Lab) isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

type fileID struct{ dev, ino uint64 }

func identifyFile(path string) (fileID, bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), st.Ino}, true
}

// unmount releases the namespaces. Only what is a namespace is unmounted from
// /run/netns, and only if it is ours.
func (l *Lab) unmount() error {
	for _, h := range l.state.Topology.Hosts {
		if l.IPNetNS {
			if err := l.unnameForIP(h.Name); err != nil {
				return err
			}
		}
	}
	if err := detach([]string{string(l.dir)}); err != nil {
		return err
	}
	points, err := mountPoints()
	if err != nil {
		return err
	}
	for _, p := range points { // removing files below a mount would remove what is mounted
		if p == string(l.dir) || strings.HasPrefix(p, string(l.dir)+"/") {
			return fmt.Errorf("%s is still mounted", p)
		}
	}
	return nil
}

func (l *Lab) unnameForIP(host string) error {
	path := l.dir.ipNetNS(host)
	named, ok := identifyFile(path)
	if !ok {
		return nil
	}
	if l.isNamespace(path) {
		if ours, ok := identifyFile(l.dir.net(host)); !ok || ours != named {
			return nil // somebody else's by now
		}
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
