package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/impair"
	"github.com/onpath/onpath/lab/relay"
	"golang.org/x/sys/unix"
)

// Faults. Each ends by itself after its time, whatever becomes of the process
// that caused it. A later fault of the same kind at the same place replaces the
// one before; a time of 0 ends it.

// FindLink finds a link by its name ("a:eth0-b:eth1") or by either end
// ("a:eth0").
func (l *Lab) FindLink(name string) (*Link, error) {
	var names []string
	for _, k := range l.state.Topology.Links {
		if name == k.Name() || name == k.A.String() && k.A.Interface != "" || name == k.B.String() && k.B.Interface != "" {
			return k, nil
		}
		names = append(names, k.Name())
	}
	return nil, &onpath.Error{
		Code: onpath.CodeNotFound, Message: fmt.Sprintf("lab %s has no link %q", l.Name(), name),
		Remedy: "name a link or one of its ends; there are " + strings.Join(names, ", "),
	}
}

// Loss makes a link lose the share p (0 to 1) of its frames, in both directions,
// for the time d. Nobody is told: devices stay up and have carrier.
func (l *Lab) Loss(link *Link, p float64, d time.Duration) error {
	i := slices.Index(l.state.Topology.Links, link)
	var errs []error
	for _, e := range []struct {
		end  End
		side string
	}{{link.A, "a"}, {link.B, "b"}} {
		at := l.placeOf(e.end, i, e.side, link.MTU)
		err := inNetNS(l.dir.net(at.node), func() error {
			if d == 0 {
				return impair.Clear(at.name)
			}
			return impair.Loss(at.name, impair.Sent, p, d)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("link %s: %w", link.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// Cut makes a link lose everything for the time d.
func (l *Lab) Cut(link *Link, d time.Duration) error { return l.Loss(link, 1, d) }

// KillHost does to a host what a power cut does to a machine, as others see it:
// its links carry nothing for the time d, and what runs in it ends with SIGKILL.
// Containers have namespaces of their own and stay; nothing reaches them
// meanwhile. It returns the ids of the processes.
func (l *Lab) KillHost(host string, d time.Duration) (killed []int, err error) {
	if l.state.Topology.Host(host) == nil {
		return nil, l.Command(host, "").Err
	}
	for _, k := range l.state.Topology.Links { // first: the dead say no farewell
		if k.A.Node == host || k.B.Node == host {
			err = errors.Join(err, l.Cut(k, d))
		}
	}
	if err != nil || d == 0 {
		return nil, err
	}
	for _, p := range l.runningIn(host) {
		p.signal(unix.SIGKILL)
		killed = append(killed, p.PID)
	}
	return killed, nil
}

// runningIn are the processes in a host's network namespace, but the caller.
func (l *Lab) runningIn(host string) (out []identity) {
	ours, ok := identifyFile(l.dir.net(host))
	if !ok || !l.isNamespace(l.dir.net(host)) {
		return nil
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if net, ok := identifyFile("/proc/" + e.Name() + "/ns/net"); ok && net == ours {
			if id, err := identify(pid); err == nil {
				out = append(out, id)
			}
		}
	}
	return out
}

// Delay makes frames of a link take longer by extra, in both directions, for the
// time d. The link must be an emulated one.
func (l *Lab) Delay(ctx context.Context, link *Link, extra, d time.Duration) error {
	i := slices.Index(l.state.Topology.Links, link)
	if !link.Shaped() {
		return &onpath.Error{
			Code: onpath.CodeUnsupported, Message: fmt.Sprintf("link %s is a plain pair of devices, which cannot be made slower", link.Name()),
			Remedy: "give it a rate, a delay or a loss in the lab's file, however small (delay: 1us), so that it is emulated",
		}
	}
	if l.Emulation == EmulateRelay {
		shaped := l.shaped()
		return relay.WriteDelay(l.dir.counters(), len(shaped), slices.Index(shaped, i), extra, d)
	}
	unlock, err := l.dir.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if l.state, err = l.dir.load(); err != nil {
		return err
	}
	if err := l.reshape(i, extra); err != nil || d == 0 {
		return err
	}
	// netem has no end of its own: somebody who outlives us must put it back.
	cmd := exec.Command(self)
	cmd.Args = []string{nameDelay, string(l.dir), strconv.Itoa(i), strconv.FormatInt(int64(d), 10)}
	cmd.Dir = "/"
	if err := l.start(cmd, &Process{Name: "delay", Run: cmd.Args}); err != nil {
		return errors.Join(err, l.reshape(i, 0))
	}
	return ctx.Err()
}

// reshape sets a netem link's delay to its own and extra.
func (l *Lab) reshape(i int, extra time.Duration) error {
	w, err := l.inside(wire)
	if err != nil {
		return err
	}
	defer w.close()
	link := l.state.Topology.Links[i]
	for _, side := range []struct {
		device string
		shape  Shape
	}{{middle(i, "b"), link.There}, {middle(i, "a"), link.Back}} {
		dev, err := w.LinkByName(side.device)
		if err != nil {
			return fmt.Errorf("link %s: %w", link.Name(), err)
		}
		side.shape.Delay += onpath.Duration(extra)
		if err := w.QdiscReplace(netemFor(dev.Attrs().Index, side.shape, link.MTU)); err != nil {
			return fmt.Errorf("link %s: netem: %w", link.Name(), err)
		}
	}
	return nil
}

// delayMain waits and puts a netem link back: DIRECTORY LINK NANOSECONDS.
func delayMain(args []string) error {
	if err := waitAtBarrier(); err != nil {
		return err
	}
	if len(args) != 3 {
		return errors.New("helper called by hand")
	}
	i, err1 := strconv.Atoi(args[1])
	wait, err2 := strconv.ParseInt(args[2], 10, 64)
	s, err3 := directory(args[0]).load()
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	time.Sleep(time.Duration(wait))
	l := &Lab{dir: directory(args[0]), state: s}
	return l.reshape(i, 0)
}
