// Package traffic makes and counts the packets of measurements: a source and a
// sink of 64-byte UDP frames in the kernel, and a pump and a pinger over sockets.
//
// The source needs neither pktgen nor a second machine: the kernel runs a
// program on frames of its own (BPF_PROG_TEST_RUN with live frames), at two to
// three million frames a second and core, and handles what the frames cause in
// between. So on one core an unlimited source offers exactly what that core can
// forward, and what is forwarded within the kernel is never lost by overload.
package traffic

import (
	"bytes"
	_ "embed"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

//go:generate make -B -C ../bpf

//go:embed traffic_bpfel.o
var object []byte

// FrameLen is the length of a frame in bytes, without the checksum of four bytes
// that a wire adds and a veth has not: together the smallest Ethernet frame.
const FrameLen = 60

// headLen is that of a frame before its payload: Ethernet, IPv4, UDP.
const headLen = 42

// flowBits is how many flows differ by their address; more differ by port.
const flowBits = 20

// The layouts of bench/bpf/traffic.bpf.c.

type planValue struct {
	Dst, Src    [6]byte
	Port, DPort uint16
	Addr, DAddr uint32
	Flows       uint32
	Order       uint32
	Flags       uint32
	First       uint32
	Time        uint64
	Interval    uint64
	Length, Pad uint32
}

type progressValue struct {
	Sent        uint64
	Random      uint64
	Begin, Last uint64
	Counted     uint64
	Due         uint64
	Runs, Next  uint32
	Over, Pad   uint32
}

const (
	classBits = 5
	classes   = 896
)

type seenValue struct {
	Packets, Bytes uint64
	First, Last    uint64
	Delays         [classes]uint64
}

// The flags of a plan.
const (
	flagBack  = 1
	flagStamp = 2
	flagPairs = 4
	flagSYNs  = 8
)

func load() (*ebpf.Collection, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read the compiled traffic programs: %w", err)
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load the traffic programs: %w", err)
	}
	return c, nil
}

// indexOf is the number of a device in a namespace.
func indexOf(ns, dev string) (index int, err error) {
	err = netnsrun.Do(ns, func() error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return fmt.Errorf("find device %s: %w", dev, err)
		}
		index = l.Attrs().Index
		return nil
	})
	return index, err
}

// LastCPU is the CPU on which forwarding is measured: the last one this process
// may use, because the first ones get the machine's other work.
func LastCPU() int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return runtime.NumCPU() - 1
	}
	for cpu := len(set)*64 - 1; cpu > 0; cpu-- {
		if set.IsSet(cpu) {
			return cpu
		}
	}
	return 0
}

// giveWay has the calling thread run only while nobody else wants its CPU, as a
// wire does: who receives in user space is never kept from it by the source.
func giveWay() error {
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		return fmt.Errorf("lower a thread's priority: %w", err)
	}
	return nil
}

// pin binds the calling thread to a CPU.
func pin(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin a thread to CPU %d: %w", cpu, err)
	}
	return nil
}
