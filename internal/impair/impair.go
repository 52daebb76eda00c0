// Package impair makes a network device lose what it sends or receives, for a time. The
// program that does it knows its end: it lets everything pass from then on,
// whoever of its makers has died. Nothing needs to be undone, only cleared away.
package impair

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The names of filter and program, by which they are known again.
// (The data path takes filters whose names begin with onpath- for its own.)
const (
	name        = "fault of onpath"
	programName = "onpath_fault"
)

// priority of the filter: before others. The number tells it from the data path's own of
// the same priority, before which the kernel runs it, as the one that came later.
const (
	priority = 1
	number   = 0x6f70
)

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
	return lose(device, way, nil, p, d)
}

// Datagrams are those of UDP that go to a port.
type Datagrams struct {
	To   uint16
	Peer netip.Addr // the other end, if only that is meant
}

// Cut makes a device lose such datagrams, all of them, as Loss loses frames.
func Cut(device string, way Way, of Datagrams, d time.Duration) error {
	return lose(device, way, of.chosen(way), 1, d)
}

// lose loses those of which chosen, some instructions, does not jump to pass.
func lose(device string, way Way, chosen asm.Instructions, p float64, d time.Duration) error {
	if p < 0 || p > 1 || d < 0 {
		return fmt.Errorf("a loss of %g for %s at %s: a share is from 0 to 1, a time is not negative", p, d, device)
	}
	l, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	index := l.Attrs().Index
	verdict, ahead := int32(tcStolen), way == Received && hasTCX(index)
	if ahead {
		verdict = tcxDrop
	}
	end, prog, err := lossy(chosen, p, verdict)
	if err != nil {
		return fmt.Errorf("load the program that loses frames: %w", err)
	}
	defer end.Close()
	defer prog.Close()
	if ahead { // of programs that take packets over as they come in
		err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: index, Program: prog,
			Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
		if err != nil {
			return fmt.Errorf("attach to %s: %w", device, err)
		}
		return errors.Join(begin(end, d), detach(index, prog))
	}
	if err := netlink.QdiscAdd(clsact(index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("clsact on %s: %w", device, err)
	}
	f := filter(index, way)
	f.Fd = prog.FD()
	if err := netlink.FilterReplace(f); err != nil {
		return fmt.Errorf("attach to %s: %w", device, err)
	}
	return begin(end, d)
}

// What the program says of frames that are lost. Who sends them is not to be told, so
// they are stolen rather than dropped, which tcx does not know.
const (
	tcStolen = 4 // TC_ACT_STOLEN
	tcxDrop  = 2 // TCX_DROP
)

func hasTCX(index int) bool {
	_, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	return err == nil
}

// detach takes away all programs of ours where a device receives, but for one.
func detach(index int, but *ebpf.Program) error {
	list, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil // no tcx, no program
	}
	var keep ebpf.ProgramID
	if but != nil {
		if info, err := but.Info(); err == nil {
			keep, _ = info.ID()
		}
	}
	var errs []error
	for _, at := range list.Programs {
		p, err := ebpf.NewProgramFromID(at.ID)
		if err != nil {
			continue // gone meanwhile
		}
		if info, err := p.Info(); err == nil && info.Name == programName && at.ID != keep {
			errs = append(errs, link.RawDetachProgram(link.RawDetachProgramOptions{Target: index, Program: p,
				Attach: ebpf.AttachTCXIngress}))
		}
		p.Close()
	}
	return errors.Join(errs...)
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
			LinkIndex: index, Parent: uint32(way), Handle: number, Protocol: unix.ETH_P_ALL, Priority: priority,
		},
		Name: name, DirectAction: true,
	}
}

// chosen are instructions that let all else pass, with the packet's context in R6. (What
// IPv6 sends in fragments passes, too, and of IPv4 all but the first.)
func (d Datagrams) chosen(way Way) asm.Instructions {
	const (
		pass   = "pass"
		header = -48 // on the stack
		port   = -8
	)
	peer := d.Peer.Unmap()
	// load copies n bytes of the packet, from R2 on behind the network header's begin.
	load := func(to, n int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, to),
			asm.Mov.Imm(asm.R4, n),
			asm.Mov.Imm(asm.R5, 1), // BPF_HDR_START_NET
			asm.FnSkbLoadBytesRelative.Call(),
			asm.JNE.Imm(asm.R0, 0, pass),
		}
	}
	wire := func(v uint16) int32 { return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))) }
	goesTo := append(load(port, 2), asm.LoadMem(asm.R0, asm.RFP, port, asm.Half), asm.JNE.Imm(asm.R0, wire(d.To), pass))
	// equal compares words of the other end's address.
	equal := func(at int16, address []byte) (list asm.Instructions) {
		for i := 0; i < len(address); i += 4 {
			word := int32(binary.NativeEndian.Uint32(address[i:]))
			list = append(list, asm.LoadMem(asm.R0, asm.RFP, header+at+int16(i), asm.Word), asm.JNE.Imm32(asm.R0, word, pass))
		}
		return list
	}
	at4, at6 := int16(12), int16(8) // sources
	if way == Sent {
		at4, at6 = 16, 24
	}
	four := slices.Concat(asm.Instructions{asm.Mov.Imm(asm.R2, 0)}, load(header, 20), asm.Instructions{
		asm.LoadMem(asm.R0, asm.RFP, header+9, asm.Byte),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, pass),
		asm.LoadMem(asm.R0, asm.RFP, header+6, asm.Half),
		asm.And.Imm(asm.R0, wire(0x1fff)),
		asm.JNE.Imm(asm.R0, 0, pass),
		asm.LoadMem(asm.R2, asm.RFP, header, asm.Byte),
		asm.And.Imm(asm.R2, 0xf),
		asm.LSh.Imm(asm.R2, 2),
		asm.Add.Imm(asm.R2, 2),
	}, goesTo)
	six := slices.Concat(asm.Instructions{asm.Mov.Imm(asm.R2, 0)}, load(header, 40), asm.Instructions{
		asm.LoadMem(asm.R0, asm.RFP, header+6, asm.Byte),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, pass),
		asm.Mov.Imm(asm.R2, 42),
	}, goesTo)
	switch {
	case peer.Is4():
		four = append(four, equal(at4, peer.AsSlice())...)
		six = asm.Instructions{asm.Ja.Label(pass)}
	case peer.Is6():
		four = asm.Instructions{asm.Ja.Label(pass)}
		six = append(six, equal(at6, peer.AsSlice())...)
	}
	six[0] = six[0].WithSymbol("v6")
	if !peer.Is6() {
		four = append(four, asm.Ja.Label("lost"))
	}
	return slices.Concat(asm.Instructions{
		asm.LoadMem(asm.R7, asm.R6, 16, asm.Word), // __sk_buff.protocol, as on the wire
		asm.JEq.Imm(asm.R7, wire(unix.ETH_P_IPV6), "v6"),
		asm.JNE.Imm(asm.R7, wire(unix.ETH_P_IP), pass),
	}, four, six)
}

// lossy compares the clock with its end, which stands in a map that lives as long
// as the program, and a random number with the share.
func lossy(chosen asm.Instructions, p float64, verdict int32) (end *ebpf.Map, prog *ebpf.Program, err error) {
	if err := rlimit.RemoveMemlock(); err != nil && !errors.Is(err, os.ErrPermission) {
		return nil, nil, err
	}
	end, err = ebpf.NewMap(&ebpf.MapSpec{Name: "onpath_fault", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, nil, err
	}
	prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: programName, Type: ebpf.SchedCLS, License: "GPL",
		Instructions: slices.Concat(asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.FnKtimeGetNs.Call(),
			asm.LoadMapValue(asm.R1, end.FD(), 0),
			asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord),
			asm.JGE.Reg(asm.R0, asm.R1, "pass"),
		}, chosen, asm.Instructions{
			asm.FnGetPrandomU32.Call().WithSymbol("lost"),
			asm.LoadImm(asm.R1, int64(math.Round(p*(1<<32))), asm.DWord),
			asm.JGE.Reg(asm.R0, asm.R1, "pass"),
			asm.Mov.Imm(asm.R0, verdict),
			asm.Return(),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("pass"), // TC_ACT_UNSPEC: others have their say
			asm.Return(),
		}),
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
	if err := detach(l.Attrs().Index, nil); err != nil {
		return fmt.Errorf("detach from %s: %w", device, err)
	}
	ours, others := 0, 0
	for _, way := range []Way{Sent, Received} {
		list, err := netlink.FilterList(l, uint32(way))
		if err != nil {
			continue // no clsact, no filter
		}
		for _, f := range list {
			if b, ok := f.(*netlink.BpfFilter); !ok || b.Name != name {
				others++
				continue
			}
			ours++
			if err := netlink.FilterDel(f); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("detach from %s: %w", device, err)
			}
		}
	}
	if ours == 0 || others > 0 {
		return nil
	}
	if err := netlink.QdiscDel(clsact(l.Attrs().Index)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("clsact of %s: %w", device, err)
	}
	return nil
}

func clsact(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}
