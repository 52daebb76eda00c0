package bench

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/internal/netnsrun"
)

//go:generate make -B -C bpf

//go:embed limits_bpfel.o
var limits []byte

// router is a contestant in the middle of a line.
type router struct {
	name string
	// build has the line's router forward, and gives back lacking if this machine
	// has not what it takes. What it makes goes with the line's testnet.
	build func(context.Context, *Run, *line) error
}

// built is a router at work.
type built struct {
	router
	*line
}

// routers builds a line for each contestant that can take part. The caller
// closes them, also after an error.
func (r *Run) routers(ctx context.Context, list []router) (out []built, err error) {
	for _, c := range list {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		l, err := r.newLine(c.name)
		if err != nil {
			return out, err
		}
		err = c.build(ctx, r, l)
		var why lacking
		if errors.As(err, &why) {
			r.skip(c.name, string(why))
			if err := l.Close(); err != nil {
				return out, err
			}
			continue
		}
		out = append(out, built{c, l})
		if err != nil {
			return out, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return out, nil
}

func closeAll(list []built) error {
	var errs []error
	for _, b := range list {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

// linuxRouter is the kernel's own forwarding, without netfilter rules.
func linuxRouter() router {
	return router{"linux", func(_ context.Context, _ *Run, l *line) error {
		return testnet.Set(l.router, "ipv4/ip_forward=1")
	}}
}

// Of the kernel's connection tracking: room for the flows of some trials, which it forgets
// after some seconds.
var conntrackSizes = map[string]string{"nf_conntrack_buckets": "1048576", "nf_conntrack_max": "4194304"}

// conntrackRouter is the same with connection tracking, as with any stateful rule of
// netfilter's: each new flow gets an entry for both directions.
func conntrackRouter() router {
	return router{"linux-conntrack", func(_ context.Context, _ *Run, l *line) error {
		if err := testnet.Set(l.router, "ipv4/ip_forward=1"); err != nil {
			return err
		}
		if err := netnsrun.Do(l.router, trackForwarded); err != nil {
			return lacking(fmt.Sprintf("connection tracking by nftables: %v", err))
		}
		for name, value := range conntrackSizes { // of the machine
			file := "/proc/sys/net/netfilter/" + name
			was, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, []byte(value), 0o644)
			}
			if err != nil {
				return lacking(fmt.Sprintf("a larger table of connection tracking: %v", err))
			}
			l.After(func() error { return os.WriteFile(file, was, 0o644) })
		}
		return testnet.Set(l.router, "netfilter/nf_conntrack_udp_timeout=5")
	}}
}

// trackForwarded lets through what begins a connection or belongs to one.
func trackForwarded() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "track", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	const known = expr.CtStateBitNEW | expr.CtStateBitESTABLISHED
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(known), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}})
	return c.Flush()
}

// hop is one direction through a line.
type hop struct {
	in, out  string
	dst, src net.HardwareAddr
}

var hops = []hop{{devIn, devOut, macSink, macOut}, {devOut, devIn, macSource, macIn}}

// xdpRouter is a program that writes two addresses and redirects, nothing else:
// the limit of what can be done on XDP.
func xdpRouter() router {
	return router{"xdp", func(_ context.Context, _ *Run, l *line) error {
		return l.limit("limit_xdp", func(p *ebpf.Program, index int) (link.Link, error) {
			return link.AttachXDP(link.XDPOptions{Program: p, Interface: index, Flags: link.XDPDriverMode})
		})
	}}
}

// tcRouter is the same on tc.
func tcRouter() router {
	return router{"tc", func(_ context.Context, _ *Run, l *line) error {
		return l.limit("limit_tc", func(p *ebpf.Program, index int) (link.Link, error) {
			k, err := link.AttachTCX(link.TCXOptions{Program: p, Interface: index, Attach: ebpf.AttachTCXIngress})
			if errors.Is(err, ebpf.ErrNotSupported) {
				return nil, lacking("this kernel has no tcx (Linux 6.6)")
			}
			return k, err
		})
	}}
}

// limit puts a program of bench/bpf/limits.bpf.c on both devices of the router.
func (l *line) limit(name string, attach func(*ebpf.Program, int) (link.Link, error)) error {
	return netnsrun.Do(l.router, func() error {
		for _, h := range hops {
			p, err := limitProgram(name, h)
			if err != nil {
				return err
			}
			l.After(p.Close)
			in, err := netlink.LinkByName(h.in)
			if err != nil {
				return err
			}
			k, err := attach(p, in.Attrs().Index)
			if err != nil {
				return fmt.Errorf("attach %s to %s: %w", name, h.in, err)
			}
			l.After(k.Close)
		}
		return nil
	})
}

// limitProgram loads a program that sends to the other end; it runs in the
// router's namespace.
func limitProgram(name string, h hop) (*ebpf.Program, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(limits))
	if err != nil {
		return nil, fmt.Errorf("read the compiled limits: %w", err)
	}
	out, err := netlink.LinkByName(h.out)
	if err != nil {
		return nil, err
	}
	var macs [12]byte
	copy(macs[:6], h.dst)
	copy(macs[6:], h.src)
	if err := errors.Join(spec.Variables["out_ifindex"].Set(uint32(out.Attrs().Index)), spec.Variables["macs"].Set(macs)); err != nil {
		return nil, fmt.Errorf("set up %s: %w", name, err)
	}
	for other := range spec.Programs {
		if other != name {
			delete(spec.Programs, other)
		}
	}
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	p := c.DetachProgram(name)
	c.Close()
	return p, nil
}
