package fault

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/impair"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/wiring"
)

// processID is a process that cannot be mistaken for a later one.
type processID struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks after boot
}

// startOf is when a process began, as /proc tells; "" if there is none.
func startOf(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	f := bytes.Fields(stat[max(bytes.LastIndexByte(stat, ')'), 0):])
	if len(f) < 21 {
		return ""
	}
	return string(f[20])
}

// signal reaches the process only if it still is the same one.
func (p processID) signal(s unix.Signal) error {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("process %d: %w", p.PID, err)
	}
	defer unix.Close(fd)
	if startOf(p.PID) != p.Start {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// insideOf are the processes of an instance, its first one first: those in its
// process namespace, or where it has none of its own, that one alone.
func insideOf(first int) []processID {
	out := []processID{{first, startOf(first)}}
	ns := func(pid string) string {
		l, _ := os.Readlink("/proc/" + pid + "/ns/pid")
		return l
	}
	own := ns(strconv.Itoa(first))
	if own == "" || own == ns("self") {
		return out
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != first && ns(e.Name()) == own {
			out = append(out, processID{pid, startOf(pid)})
		}
	}
	return out
}

func (l *lease) kill(pid int) error {
	p := processID{pid, startOf(pid)}
	l.Fault.Processes = []int{pid}
	return p.signal(unix.SIGKILL)
}

// aim notes what the fault is done to.
func (l *lease) aim(pid int, w wiring.Wiring) {
	if l.Fault.Kind == onpath.FaultStall {
		for _, p := range insideOf(pid) {
			l.Stopped = append(l.Stopped, p)
			l.Fault.Processes = append(l.Fault.Processes, p.PID)
		}
		return
	}
	for _, p := range w.Ports() {
		if l.Fault.Kind == onpath.FaultDelay { // a queue is where frames are sent
			l.Fault.Devices = append(l.Fault.Devices, onpath.DeviceName(p.ID))
		}
		l.Fault.Devices = append(l.Fault.Devices, inside+p.Inside)
	}
}

// begin causes a fault that lasts.
func (l *lease) begin(r onpath.FaultRequest) error {
	if r.Kind == onpath.FaultStall {
		for _, p := range l.Stopped {
			if err := p.signal(unix.SIGSTOP); err != nil {
				return err
			}
		}
		return nil
	}
	return l.eachDevice(func(device string) error {
		if r.Kind == onpath.FaultDrop {
			d := time.Until(l.Fault.Until)
			if d <= 0 { // the devices before took all its time
				return nil
			}
			return errors.Join(impair.Loss(device, impair.Sent, r.Share, d), impair.Loss(device, impair.Received, r.Share, d))
		}
		return slow(device, time.Duration(r.Delay))
	})
}

// inside marks devices of the instance's own namespace.
const inside = "instance:"

// eachDevice calls do for each device of the fault, in its namespace.
func (l *lease) eachDevice(do func(device string) error) error {
	var errs []error
	for _, d := range l.Fault.Devices {
		ns := l.NetNS
		if len(d) > len(inside) && d[:len(inside)] == inside {
			ns, d = l.Inside, d[len(inside):]
		}
		if ns == "" {
			errs = append(errs, do(d))
			continue
		}
		errs = append(errs, netnsrun.Do(ns, func() error { return do(d) }))
	}
	return errors.Join(errs...)
}

// end undoes what begin did, as far as it is still there.
func (l *lease) end() error {
	if l.Fault.Kind == onpath.FaultStall {
		var errs []error
		for _, p := range l.Stopped {
			errs = append(errs, p.signal(unix.SIGCONT))
		}
		return errors.Join(errs...)
	}
	if l.Fault.Kind.OfNode() {
		return l.eachDevice(impair.Clear)
	}
	if !netnsrun.Is(l.Inside) {
		return nil // the instance has gone, and its devices with it
	}
	return l.eachDevice(func(device string) error {
		if l.Fault.Kind == onpath.FaultDrop {
			return impair.Clear(device)
		}
		return unslow(device)
	})
}

// slowHandle tells our netem from one that somebody else put there.
var slowHandle = netlink.MakeHandle(0x6f70, 0)

// slow makes a device of the calling thread's namespace hold what it sends.
func slow(device string, d time.Duration) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	q := netlink.NewNetem(
		netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: slowHandle, Parent: netlink.HANDLE_ROOT},
		netlink.NetemQdiscAttrs{Latency: uint32(d.Microseconds()), Limit: 100_000})
	err = netlink.QdiscReplace(q)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		e := onpath.Errorf(onpath.CodeUnsupported, "this node's kernel cannot delay packets: it has no netem")
		e.Remedy = "load the module sch_netem, or inject drop or stall-instance instead"
		return e
	}
	if err != nil {
		return fmt.Errorf("netem on %s: %w", device, err)
	}
	return nil
}

func unslow(device string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return fmt.Errorf("device %s: %w", device, err)
	}
	list, err := netlink.QdiscList(link)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	for _, q := range list {
		if a := q.Attrs(); a.Handle == slowHandle && a.Parent == netlink.HANDLE_ROOT && a.LinkIndex == link.Attrs().Index {
			return netlink.QdiscDel(q)
		}
	}
	return nil
}
