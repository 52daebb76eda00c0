// Package impair makes a network device lose what it sends or receives, for a time. The
// program that does it knows its end: it lets everything pass from then on,
// whoever of its makers has died. Nothing needs to be undone, only cleared away.
package impair

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// name of the filter, by which it is known again.
const name = "onpath-fault"

// priority of the filter: before others.
const priority = 1

// Way is a direction at a device.
type Way uint32

// The directions. Who sends what is lost does not learn of it, as with a cable.
const (
	Sent     Way = netlink.HANDLE_MIN_EGRESS
	Received Way = netlink.HANDLE_MIN_INGRESS
)

// Loss makes a device of the calling thread's network namespace lose the share
// p (0 to 1) of the frames that it sends or receives, at random, for the time d; it
// replaces what was asked before for that direction.
func Loss(device string, way Way, p float64, d time.Duration) error {
	if p < 0 || p > 1 || d < 0 {
		return fmt.Errorf("a loss of %g for %s at %s: a share is from 0 to 1, a time is not negative", p, d, device)
	}
	l, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	end, prog, err := lossy(p)
	if err != nil {
		return fmt.Errorf("load the program that loses frames: %w", err)
	}
	defer end.Close()
	defer prog.Close()
	index := l.Attrs().Index
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("clsact on %s: %w", device, err)
	}
	f := filter(index, way)
	f.Fd = prog.FD()
	if err := netlink.FilterReplace(f); err != nil {
		return fmt.Errorf("attach to %s: %w", device, err)
	}
	return begin(end, d)
}

// begin makes the program lose frames from now on, for the time d. Loading and
// attaching it took their time, of which nothing is to be missing in d.
func begin(end *ebpf.Map, d time.Duration) error {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	if err == nil {
		err = end.Put(uint32(0), uint64(now.Nano()+int64(d)))
	}
	if err != nil {
		return fmt.Errorf("begin to lose frames: %w", err)
	}
	return nil
}

func filter(index int, way Way) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: uint32(way), Handle: 1, Protocol: unix.ETH_P_ALL, Priority: priority,
		},
		Name: name, DirectAction: true,
	}
}

// lossy compares the clock with its end, which stands in a map that lives as long
// as the program, and a random number with the share.
func lossy(p float64) (end *ebpf.Map, prog *ebpf.Program, err error) {
	if err := rlimit.RemoveMemlock(); err != nil && !errors.Is(err, os.ErrPermission) {
		return nil, nil, err
	}
	end, err = ebpf.NewMap(&ebpf.MapSpec{Name: "onpath_fault", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, nil, err
	}
	prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "onpath_fault", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{
			asm.FnKtimeGetNs.Call(),
			asm.LoadMapValue(asm.R1, end.FD(), 0),
			asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord),
			asm.JGE.Reg(asm.R0, asm.R1, "pass"),
			asm.FnGetPrandomU32.Call(),
			asm.LoadImm(asm.R1, int64(math.Round(p*(1<<32))), asm.DWord),
			asm.JGE.Reg(asm.R0, asm.R1, "pass"),
			asm.Mov.Imm(asm.R0, 4), // TC_ACT_STOLEN: TC_ACT_SHOT would fail the sender's send()
			asm.Return(),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("pass"), // TC_ACT_UNSPEC: others have their say
			asm.Return(),
		},
	})
	if err != nil {
		end.Close()
		return nil, nil, err
	}
	return end, prog, nil
}

// Clear takes away what Loss attached to a device, if anything.
func Clear(device string) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return fmt.Errorf("device %s: %w", device, err)
	}
	for _, way := range []Way{Sent, Received} {
		list, err := netlink.FilterList(l, uint32(way))
		if err != nil {
			return nil // no clsact, no filter
		}
		for _, f := range list {
			if b, ok := f.(*netlink.BpfFilter); !ok || b.Name != name {
				continue
			}
			if err := netlink.FilterDel(filter(l.Attrs().Index, way)); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("detach from %s: %w", device, err)
			}
		}
	}
	return nil
}
