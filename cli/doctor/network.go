package doctor

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/sockets"
)

// feature is something to try in a namespace of its own.
type feature struct {
	name string
	try  func() error
	// without is said where it fails, and how bad that is.
	status  Status
	without string
	remedy  string
}

var features = []feature{
	{"veth", func() error { return addLink(&netlink.Veth{LinkAttrs: attrs("dv0"), PeerName: "dv1"}) }, Lack,
		"instances cannot be connected", "use a kernel with CONFIG_VETH (modprobe veth)"},
	{"eBPF on tc", tryProgram, Lack, "packets cannot be steered", "run as root on a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF"},
	{"tcx", tryTCX, Warn, "clsact is used instead, which shares a device less well with others (Linux 6.6 has tcx)", ""},
	{"XDP links", tryXDP, Warn, "flows that only cross this machine take the ordinary path, which is slower",
		"Linux 5.15 with CONFIG_BPF_SYSCALL has them"},
	{"VXLAN", func() error { return addLink(&netlink.Vxlan{LinkAttrs: attrs("dx0"), FlowBased: true, Port: 4797}) }, Warn,
		"chains across nodes need it", "use a kernel with CONFIG_VXLAN (modprobe vxlan)"},
	{"bridge", func() error { return addLink(&netlink.Bridge{LinkAttrs: attrs("db0")}) }, Warn,
		"labs with switches need it", "modprobe bridge"},
	{"ending connections", sockets.Possible, Warn,
		"the kernel goes on sending for connections of a function's dead process, and new ones by the same ports may need a second try",
		"use Linux 6.11, or one that has its mending of tcp_abort, with CONFIG_INET_DIAG_DESTROY"},
	{"netem", tryNetem, Warn, "onpath lab emulates delay and loss by itself", "modprobe sch_netem makes labs faster"},
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func addLink(l netlink.Link) error { return netlink.LinkAdd(l) }

// namespaceFeatures tries all features in a fresh network namespace on a thread
// that ends with it, so that nothing of the machine is touched or left.
func namespaceFeatures(_ context.Context, _ Machine) []Result {
	done := make(chan []Result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, and the namespace with it, ends
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- []Result{{Name: "network namespaces", Status: Lack, Detail: err.Error(),
				Remedy: "run as root (sudo), outside of containers"}}
			return
		}
		list := []Result{{Name: "network namespaces", Status: OK, Detail: "can be made"}}
		for _, f := range features {
			list = append(list, f.result(f.try()))
		}
		done <- list
	}()
	return <-done
}

func (f feature) result(err error) Result {
	switch {
	case err == nil:
		return Result{Name: f.name, Status: OK, Detail: "works"}
	case errors.Is(err, unix.EPERM):
		return Result{Name: f.name, Status: f.status, Detail: "not permitted; " + f.without,
			Remedy: "run as root (sudo), outside of containers"}
	}
	return Result{Name: f.name, Status: f.status, Detail: fmt.Sprintf("not there (%v); %s", err, f.without), Remedy: f.remedy}
}

// tryProgram loads the smallest classifier.
func tryProgram() error {
	p, err := classifier()
	if err != nil {
		return err
	}
	return p.Close()
}

func classifier() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "onpath_doctor", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, // TCX_NEXT, TC_ACT_UNSPEC
	})
}

func tryTCX() error {
	p, err := classifier()
	if err != nil {
		return err
	}
	defer p.Close()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: lo.Attrs().Index, Program: p, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return err
	}
	return l.Close()
}

// tryXDP attaches to a veth, whose driver has XDP; it was made before. Whether the
// drivers of this machine's uplinks have it stands in the node's conditions.
func tryXDP() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "onpath_doctor", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	if err != nil {
		return err
	}
	defer p.Close()
	dev, err := netlink.LinkByName("dv0")
	if err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{Interface: dev.Attrs().Index, Program: p, Flags: link.XDPDriverMode})
	if err != nil {
		return err
	}
	return l.Close()
}

func tryNetem() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.QdiscAdd(netlink.NewNetem(
		netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		netlink.NetemQdiscAttrs{Latency: 1000}))
}
