package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/impair"
	"github.com/onpath/onpath/node/wiring"
)

// The faults of a node. Its tunnels lose everything, and so do the questions by which nodes
// hear of each other, as where a cable is cut; what else the machine says goes on, and
// whoever administers it is not cut off. A node that is killed also loses the processes of
// all its instances, and its agent is stopped until the kernel has it go on.

// answered is how long an answer to whoever asked for the fault takes to be on its way.
const answered = 250 * time.Millisecond

// ofNode causes a fault of this node.
func (f *faults) ofNode(r onpath.FaultRequest) (*onpath.Fault, error) {
	a := f.a
	if r.Node != a.opt.Name {
		return nil, onpath.Errorf(onpath.CodeInvalid, "a fault of node %s was asked of node %s", r.Node, a.opt.Name)
	}
	spec := a.spec()
	if r.Kind == onpath.FaultKillNode && len(spec.Uplinks) > 0 {
		e := onpath.Errorf(onpath.CodeUnsupported, "node %s is a gateway: what comes by its uplinks cannot be cut off on purpose", r.Node)
		e.Remedy = "inject cut-link, which cuts its tunnels, or take its ports down at the switch; in a lab, kill its host"
		return nil, e
	}
	device, err := underlayDevice(a.opt.NetNS, spec.Underlay)
	if err != nil {
		return nil, err
	}
	tunnels := &impair.Datagrams{To: cmp.Or(spec.Underlay.Port, onpath.DefaultTunnelPort)}
	if r.Peer != "" {
		peer, err := peerNamed(a.wantedPlan(), a.opt.Name, r.Peer)
		if err != nil {
			return nil, err
		}
		tunnels.Peer = peer.Address
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.endLike(r); err != nil {
		return nil, err
	}
	now := time.Now()
	l := &lease{NetNS: a.opt.NetNS, Tunnels: tunnels, Fault: onpath.Fault{
		ID: fmt.Sprintf("%s-%x", r.Kind, now.UnixNano()), Kind: r.Kind, Node: a.opt.Name, Peer: r.Peer,
		Began: now, Until: now.Add(time.Duration(r.For)), Devices: []string{device},
	}}
	if r.Kind == onpath.FaultKillNode {
		for _, p := range a.running() {
			l.Fault.Processes = append(l.Fault.Processes, p.PID)
		}
	}
	if err := saveLease(a.part.Dir, l); err != nil {
		return nil, err
	}
	f.keep(l)
	if err := l.cut(); err != nil {
		return nil, errors.Join(err, l.end(), removeLease(a.part.Dir, l))
	}
	at := ""
	if r.Peer != "" {
		at = " to " + r.Peer
	}
	a.part.Tell(onpath.NodeEvent{About: a.part.About(), Reason: "FaultInjected", Warning: true,
		Message: fmt.Sprintf("%s%s on purpose%s, for %s", r.Kind, at, byWhom(r), r.For)})
	a.part.Go(func(ctx context.Context) { f.endInTime(ctx, l) })
	if r.Kind == onpath.FaultKillNode {
		time.AfterFunc(answered, func() { f.die(l) })
	}
	return &l.Fault, nil
}

// underlayDevice is the one with the underlay address.
func underlayDevice(netns string, u onpath.Underlay) (string, error) {
	h, err := wiring.Open(netns)
	if err != nil {
		return "", err
	}
	defer h.Close()
	link, c := underlay(h, u.Address)
	if link == nil {
		return "", onpath.Errorf(onpath.CodeUnavailable, "there is no link to be cut: %s", c.Message)
	}
	return link.Attrs().Name, nil
}

// peerNamed is another node to which this one has a tunnel.
func peerNamed(plan *onpath.NodePlan, self, name string) (onpath.Peer, error) {
	var names []string
	if plan != nil {
		for _, p := range plan.Datapath.Peers {
			if p.Node == name {
				return p, nil
			}
			names = append(names, p.Node)
		}
	}
	e := onpath.Errorf(onpath.CodeNotFound, "node %s has no tunnel to a node %s", self, name)
	e.Remedy = "it has none at all"
	if len(names) > 0 {
		slices.Sort(names)
		e.Remedy = "it has some to " + strings.Join(names, ", ")
	}
	return onpath.Peer{}, e
}

// running are the first processes of all instances.
func (a *Agent) running() (list []processID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, in := range a.instances {
		if in.proc != nil && in.proc.Pid() != 0 {
			list = append(list, processID{in.proc.Pid(), startOf(in.proc.Pid())})
		}
	}
	return list
}

// cut has the devices lose what goes through tunnels.
func (l *lease) cut() error {
	return l.eachDevice(func(device string) error {
		d := time.Until(l.Fault.Until)
		return errors.Join(impair.Cut(device, impair.Sent, *l.Tunnels, d), impair.Cut(device, impair.Received, *l.Tunnels, d))
	})
}

// die kills the instances and stops this agent, if the fault has not ended already.
func (f *faults) die(l *lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := os.Stat(leaseFile(f.a.part.Dir, l.Fault.ID)); err != nil || time.Until(l.Fault.Until) <= 0 {
		return
	}
	cancel, err := wakeAt(l.Fault.Until)
	if err != nil {
		f.a.part.Log.Error("the agent is not stopped with its node: nothing would have it go on", "err", err)
		return
	}
	defer cancel()
	for _, p := range f.a.running() {
		if err := p.signal(unix.SIGKILL); err != nil {
			f.a.part.Log.Error("an instance is not killed with its node", "process", p.PID, "err", err)
		}
	}
	if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
		f.a.part.Log.Error("the agent is not stopped with its node", "err", err)
	}
	time.Sleep(time.Until(l.Fault.Until)) // the stop takes hold of the last thread some time later
}

// wakeAt has the kernel send SIGCONT to this process at a time, and again each second
// until it is cancelled: a process that is stopped cannot have itself go on, and any other
// that were to do it could die before.
func wakeAt(at time.Time) (cancel func(), err error) {
	event := struct { // sigevent
		value  uint64
		signal int32
		notify int32 // 0: SIGEV_SIGNAL
		_      [48]byte
	}{signal: int32(unix.SIGCONT)}
	var timer int32
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&timer))); errno != 0 {
		return nil, fmt.Errorf("make a timer: %w", errno)
	}
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, unix.SIGCONT) // a timer whose signal is ignored does not go on
	cancel = func() {
		_, _, _ = unix.Syscall(unix.SYS_TIMER_DELETE, uintptr(timer), 0, 0)
		signal.Stop(heard)
	}
	first := max(time.Until(at), time.Millisecond)
	span := struct{ interval, value unix.Timespec }{unix.NsecToTimespec(int64(time.Second)), unix.NsecToTimespec(int64(first))}
	if _, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(timer), 0, uintptr(unsafe.Pointer(&span)), 0, 0, 0); errno != 0 {
		cancel()
		return nil, fmt.Errorf("set a timer: %w", errno)
	}
	return cancel, nil
}
