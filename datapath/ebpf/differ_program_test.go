package ebpf_test

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	cilium "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/datapath/ebpf"
)

// differTable is the size of the flow tables in these tests, in entries: nothing
// makes room for anything, which the kernel does in no order that a model follows.
const differTable = 1 << 17

// programmed runs frames through the programs themselves, in the namespace of the
// gateway, whose devices it knows: at uplinks through the one at XDP first, if
// that is used, and through the one at tc what it leaves.
type programmed struct {
	*harness
	drivers map[string]*ebpf.Driver
	devices map[string]uint32
	mtus    map[string]int // of those devices, in bytes
	out     []byte
	inside  bool
	tunnel  *tunnelEnd
	longer  *tunnelEnd // makes frames longer than a test run takes
	carried int        // by XDP
	long    int        // frames longer than a test run takes that were sent on
}

func newProgram(t *testing.T, fast bool) *programmed {
	sweep, always := ebpf.SetSweep(math.MaxInt64), ebpf.SetRefreshAlways(true) // no clock decides
	t.Cleanup(func() { ebpf.SetSweep(sweep); ebpf.SetRefreshAlways(always) })
	p := &programmed{harness: newHarness(t), drivers: map[string]*ebpf.Driver{}, devices: map[string]uint32{}, out: make([]byte, 1<<14), mtus: map[string]int{}}
	p.fast, p.flows = fast, differTable
	return p
}

func (p *programmed) AddNode(n datapathtest.NodeSpec) onpath.Datapath {
	d := p.harness.AddNode(n)
	p.drivers[n.Name] = driverOf(d)
	return d
}

// enter takes the test's own thread into the gateway's namespace, where the devices
// are that test runs name, until the test ends.
func (p *programmed) enter(node string) {
	p.t.Helper()
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err == nil {
		var there *os.File
		if there, err = os.Open(p.nodes[node].ns); err == nil {
			err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET)
			err = errors.Join(err, there.Close())
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.inside = true
	p.t.Cleanup(func() {
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // a thread that cannot return is not used again
		}
		home.Close()
	})
}

// skbContext is the part of struct __sk_buff that a test run may set, xdpContext
// struct xdp_md, both in words.
type (
	skbContext [48]uint32
	xdpContext [6]uint32
)

// Verdicts of programs, as the kernel numbers them.
const (
	tcShot, tcRedirect            = 2, 7
	xdpDrop, xdpPass, xdpRedirect = 1, 2, 4
)

func (p *programmed) Put(node, device string, f datapathtest.Frame, segment int) (datapathtest.Outcome, datapathtest.Frame, string) {
	p.t.Helper()
	if !p.inside {
		p.enter(node)
	}
	index := p.deviceIndex(device)
	port := p.ports[node+"/"+device]
	in := binary.BigEndian.AppendUint16(append(hw(port.nodeMAC), hw(port.mac)...), etherType(f))
	in = append(in, f.Packet...)
	if len(in) < 60 && len(f.Packet) < 40 {
		return datapathtest.Unfit, datapathtest.Frame{}, "" // less than a test run of the kernel takes for some kinds
	}
	long := len(in) > longRun
	if long && len(in) > p.mtus[device]+14 {
		return datapathtest.Unfit, datapathtest.Frame{}, ""
	}
	if p.fast && segment == 0 && (device == "up0" || device == "up1") {
		for until := time.Now().Add(time.Minute); p.drivers[node].FastRests() && time.Now().Before(until); {
			time.Sleep(time.Millisecond) // or how busy the machine is decides who carries what
		}
		if refusedByFunction(f.Packet) {
			return datapathtest.Unfit, datapathtest.Frame{}, ""
		}
		ctx := xdpContext{1: uint32(len(in)), 3: index}
		verdict, out := p.run(p.drivers[node].FastProgram(), in, &ctx)
		if verdict == xdpRedirect {
			p.carried++
			p.long += count(long)
			return datapathtest.Sent, out, ""
		}
		if verdict == xdpDrop {
			return datapathtest.Gone, datapathtest.Frame{}, ""
		}
		if verdict != xdpPass {
			p.t.Fatalf("the verdict of XDP is %d", verdict)
		}
	}
	ctx := skbContext{10: index, 44: uint32(segment)} // ifindex, gso_size
	prog := p.drivers[node].Program()
	if long {
		prog, in = p.lengthen(prog, in, &ctx)
	}
	switch verdict, out := p.run(prog, in, &ctx); verdict {
	case tcShot:
		return datapathtest.Gone, datapathtest.Frame{}, ""
	case tcRedirect:
		p.long += count(long)
		return datapathtest.Sent, out, ""
	case notLengthened:
		p.t.Fatalf("%s takes no frame of %d bytes", device, ctx[12])
	}
	return datapathtest.Left, datapathtest.Frame{}, ""
}

// count is 1 for what is so.
func count(so bool) int {
	if so {
		return 1
	}
	return 0
}

// refusedByFunction: functions refuse packets of two classes, and no test run carries the
// note over that says so.
func refusedByFunction(p []byte) bool {
	if len(p) < 2 {
		return false
	}
	dscp := p[1] >> 2
	if p[0]>>4 == 6 {
		dscp = p[0]&15<<2 | p[1]>>6
	}
	return dscp == 61 || dscp == 62
}

// Functions implements datapathtest.Prober: what functions at XDP leave to tc goes
// there with a note beside the frame, which a test run does not carry over.
func (p *programmed) Functions() bool { return !p.fast }

// deviceIndex is that of a device in the gateway's namespace.
func (p *programmed) deviceIndex(device string) uint32 {
	p.t.Helper()
	if p.devices[device] == 0 {
		i, err := net.InterfaceByName(device)
		if err != nil {
			p.t.Fatal(err)
		}
		p.devices[device], p.mtus[device] = uint32(i.Index), i.MTU
	}
	return p.devices[device]
}

// run gives the verdict of a program, and the frame as it left it.
func (p *programmed) run(prog *cilium.Program, in []byte, ctx any) (uint32, datapathtest.Frame) {
	p.t.Helper()
	o := &cilium.RunOptions{Data: in, DataOut: p.out[:cap(p.out)], Context: ctx}
	verdict, err := prog.Run(o)
	if err != nil {
		p.t.Fatalf("%d bytes: %v", len(in), err)
	}
	b := o.DataOut
	return verdict, datapathtest.Frame{Dst: net.HardwareAddr(b[:6]).String(), Src: net.HardwareAddr(b[6:12]).String(), Packet: append([]byte(nil), trimmed(b[14:])...)}
}
