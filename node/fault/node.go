package fault

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/impair"
)

// The faults of a node. Its tunnels lose everything, and so do the questions by which nodes
// hear of each other, as where a cable is cut; what else the machine says goes on, and
// whoever administers it is not cut off. A node that is killed also loses the processes of
// all its instances, and its agent is stopped until the kernel has it go on.

// answered is how long an answer to whoever asked for the fault takes to be on its way.
const answered = 250 * time.Millisecond

// Node is what a fault of the node is done to.
type Node struct {
	Underlay string // the device with the underlay address
	Port     uint16 // of tunnels
	Peer     netip.Addr
}

// OfNode causes a fault of this node.
func (f *Faults) OfNode(r onpath.FaultRequest, n Node) (*onpath.Fault, error) {
	p := f.part
	tunnels := &impair.Datagrams{To: n.Port, Peer: n.Peer}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.endLike(r); err != nil {
		return nil, err
	}
	now := time.Now()
	l := &lease{NetNS: p.NetNS, Tunnels: tunnels, Fault: onpath.Fault{
		ID: fmt.Sprintf("%s-%x", r.Kind, now.UnixNano()), Kind: r.Kind, Node: p.Node, Peer: r.Peer,
		Began: now, Until: now.Add(time.Duration(r.For)), Devices: []string{n.Underlay},
	}}
	if r.Kind == onpath.FaultKillNode {
		l.Fault.Processes = f.instances.PIDs()
	}
	if err := saveLease(p.Dir, l); err != nil {
		return nil, err
	}
	f.keep(l)
	if err := l.cut(); err != nil {
		return nil, errors.Join(err, l.end(), removeLease(p.Dir, l))
	}
	at := ""
	if r.Peer != "" {
		at = " to " + r.Peer
	}
	p.Tell(onpath.NodeEvent{About: p.About(), Reason: "FaultInjected", Warning: true,
		Message: fmt.Sprintf("%s%s on purpose%s, for %s", r.Kind, at, byWhom(r), r.For)})
	p.Go(func(ctx context.Context) { f.endInTime(ctx, l) })
	if r.Kind == onpath.FaultKillNode {
		time.AfterFunc(answered, func() { f.die(l) })
	}
	return &l.Fault, nil
}

// cut has the devices lose what goes through tunnels.
func (l *lease) cut() error {
	return l.eachDevice(func(device string) error {
		d := time.Until(l.Fault.Until)
		return errors.Join(impair.Cut(device, impair.Sent, *l.Tunnels, d), impair.Cut(device, impair.Received, *l.Tunnels, d))
	})
}

// die kills the instances and stops this agent, if the fault has not ended already.
func (f *Faults) die(l *lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := os.Stat(leaseFile(f.part.Dir, l.Fault.ID)); err != nil || time.Until(l.Fault.Until) <= 0 {
		return
	}
	cancel, err := wakeAt(l.Fault.Until)
	if err != nil {
		f.part.Log.Error("the agent is not stopped with its node: nothing would have it go on", "err", err)
		return
	}
	defer cancel()
	for _, pid := range f.instances.PIDs() {
		p := processID{pid, startOf(pid)}
		if err := p.signal(unix.SIGKILL); err != nil {
			f.part.Log.Error("an instance is not killed with its node", "process", p.PID, "err", err)
		}
	}
	if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
		f.part.Log.Error("the agent is not stopped with its node", "err", err)
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
