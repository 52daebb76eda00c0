package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// meter runs the program that stands at a device on single frames, and takes the
// time of each run by the kernel's own clock (BPF_PROG_TEST_RUN): everything
// that the program does with the packet is in it, the device and the system call
// are not. A redirect is decided but not carried out.
type meter struct {
	prog    *ebpf.Program
	ifindex uint32
}

// newMeter finds the tcx program of a device; the calling thread must be in the
// device's namespace.
func newMeter(dev string) (*meter, error) {
	d, err := net.InterfaceByName(dev)
	if err != nil {
		return nil, err
	}
	q, err := link.QueryPrograms(link.QueryOptions{Target: d.Index, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
		return nil, lacking("the kernel has no tcx, by which the program is found")
	}
	if err != nil || len(q.Programs) == 0 {
		return nil, fmt.Errorf("%s has no program: %w", dev, err)
	}
	p, err := ebpf.NewProgramFromID(q.Programs[0].ID)
	if err != nil {
		return nil, fmt.Errorf("open the program of %s: %w", dev, err)
	}
	return &meter{p, uint32(d.Index)}, nil
}

// testRun is the part of union bpf_attr for BPF_PROG_TEST_RUN.
type testRun struct {
	fd, retval                uint32
	sizeIn, sizeOut           uint32
	in, out                   uint64
	repeat, duration          uint32 // ns
	contextIn, contextOut     uint32 // bytes
	contextAtIn, contextAtOut uint64
	flags, cpu, batch         uint32
	_                         uint32
}

const progTestRun = 10 // BPF_PROG_TEST_RUN

// run gives the verdict on a frame, and how long it took.
func (m *meter) run(frame []byte) (verdict int32, took time.Duration, err error) {
	var context [192]byte // struct __sk_buff
	binary.NativeEndian.PutUint32(context[9*4:], m.ifindex)
	binary.NativeEndian.PutUint32(context[10*4:], m.ifindex)
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&frame[0])
	pinned.Pin(&context[0])
	a := testRun{fd: uint32(m.prog.FD()), sizeIn: uint32(len(frame)), in: uint64(uintptr(unsafe.Pointer(&frame[0]))), repeat: 1,
		contextIn: uint32(len(context)), contextAtIn: uint64(uintptr(unsafe.Pointer(&context[0])))}
	if _, _, e := unix.Syscall(unix.SYS_BPF, progTestRun, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a)); e != 0 {
		return 0, 0, fmt.Errorf("run the program on a frame: %w", e)
	}
	return int32(a.retval), time.Duration(a.duration), nil
}

// firstFrame is the first packet of a flow, to a device's MAC address.
func firstFrame(to net.HardwareAddr, t onpath.Tuple) []byte {
	f := append(append(append([]byte{}, to...), macSource...), 0x08, 0)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, t.Protocol
	binary.BigEndian.PutUint16(ip[2:], 40)
	copy(ip[12:], t.Src.AsSlice())
	copy(ip[16:], t.Dst.AsSlice())
	l4 := make([]byte, 20)
	binary.BigEndian.PutUint16(l4, t.SrcPort)
	binary.BigEndian.PutUint16(l4[2:], t.DstPort)
	switch t.Protocol {
	case 6:
		l4[12], l4[13] = 0x50, 2 // SYN
	case 17:
		binary.BigEndian.PutUint16(l4[4:], 20)
	}
	return append(append(f, ip...), l4...)
}

// steerable reports whether a chain may take a tuple: no loopback, link-local,
// multicast or DHCP.
func steerable(t onpath.Tuple) bool {
	for _, a := range []netip.Addr{t.Src, t.Dst} {
		if a.IsLoopback() || a.IsLinkLocalUnicast() || a.As4()[0] >= 224 || a.As4()[0] == 0 {
			return false
		}
	}
	return (t.Protocol == 6 || t.Protocol == 17) && t.DstPort != 67 && t.DstPort != 68
}

// onCPU calls fn in a namespace, on one CPU.
func onCPU(ns string, cpu int, fn func() error) error {
	return netnsrun.Do(ns, func() (err error) {
		var was, set unix.CPUSet
		set.Set(cpu)
		if err := errors.Join(unix.SchedGetaffinity(0, &was), unix.SchedSetaffinity(0, &set)); err != nil {
			return fmt.Errorf("pin a thread to CPU %d: %w", cpu, err)
		}
		defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &was)) }()
		return fn()
	})
}
