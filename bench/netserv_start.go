package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/functions"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/offload"
	"github.com/onpath/onpath/runtime/wasm"
)

// How long engines and modules take to begin, and what an idle engine has for itself.
const (
	netservBegin  = "from the order to the first packet"
	netservIdle   = "idle engines"
	fromStock     = "engine, one waits"
	fromNothing   = "engine, none waits"
	metricEngine  = "an engine's"
	metricModule  = "one more module's"
	metricPrivate = "private memory"
)

func beginTargets() []Target {
	return []Target{
		{Text: "one more module: ≤ 20 ms to its first packet", Case: netservBegin, Contestant: fromStock, Metric: metricModule, Max: 20},
		{Text: "an engine that waits: ≤ 100 ms to its first packet", Case: netservBegin, Contestant: fromStock,
			Metric: metricEngine, Max: 100},
		{Text: "50 idle engines: ≤ 16 MiB of their own each", Case: netservIdle, Contestant: "engine", Metric: metricPrivate, Max: 16},
	}
}

// beginnings are engines of a run, each in a namespace behind one node.
type beginnings struct {
	*testnet.Network
	node string
	d    *wasm.Driver
}

func (r *Run) beginnings(ctx context.Context) (err error) {
	if r.Program == "" {
		return nil // the engines do not take part, and this was said
	}
	b, err := r.testnet("begin")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	e := &beginnings{Network: b}
	if e.node, err = b.Namespace("node"); err != nil {
		return err
	}
	e.d, err = wasm.New(wasm.Options{Dir: filepath.Join(b.Dir(), "wasm"), Cgroup: "/onpath-bench-begin", Program: r.Program, Log: r.Log})
	if err != nil {
		return err
	}
	b.After(func() error { return errors.Join(e.d.Remove(context.Background()), e.d.Close()) })
	rounds := pick(r, 20, 2)
	for i, contestant := range []string{fromNothing, fromStock} { // once engines wait, one always does
		for round := range rounds {
			r.say("%s, %d of %d", contestant, round+1, rounds)
			if contestant == fromStock {
				if err := e.stocked(ctx); err != nil {
					return err
				}
			}
			if err := e.begin(ctx, r, contestant, onpath.VportID(20+i*rounds+round), round); err != nil {
				return err
			}
		}
	}
	r.say("idle engines")
	for n := range pick(r, 50, 2) {
		p, err := e.start(ctx, onpath.VportID(100+n))
		if err != nil {
			return err
		}
		mib, err := private(p.Pid())
		if err != nil {
			return err
		}
		r.sample(netservIdle, "engine", metricPrivate, "MiB", n, mib)
	}
	return nil
}

func (e *beginnings) wire(id onpath.VportID) (ns string, err error) {
	if ns, err = wireRouted(e.Network, e.node, id, false); err != nil {
		return "", err
	}
	dev := onpath.DeviceName(id)
	return ns, errors.Join(
		netnsrun.Do(e.node, func() error { return offload.Disable(dev, offload.CompleteFrames) }),
		testnet.Neighbour(e.node, dev, behind(id), mac(onpath.InstanceMAC(id))),
		testnet.Route(e.node, dev, netip.PrefixFrom(behind(id), 32), behind(id)))
}

// behind is an address to which the way leads through an instance.
func behind(id onpath.VportID) netip.Addr { return netip.AddrFrom4([4]byte{10, 64, 1, byte(id)}) }

func idOf(id onpath.VportID) string { return fmt.Sprintf("i%d", id) }

func specOf(modules ...onpath.WasmModule) onpath.FunctionSpec {
	return onpath.FunctionSpec{Wasm: &onpath.WasmSpec{Modules: modules}, Packets: onpath.PacketsKeep,
		Resources: onpath.Resources{CPU: 1000, Memory: 64 << 20}}
}

func (e *beginnings) start(ctx context.Context, id onpath.VportID) (onpath.Process, error) {
	ns, err := e.wire(id)
	if err != nil {
		return nil, err
	}
	null := onpath.WasmModule{Name: "null", Code: nullModule}
	return e.d.Start(ctx, onpath.RunSpec{ID: idOf(id), NetNS: ns, Labels: map[string]string{"tenant": idOf(id)}, Spec: specOf(null)})
}

// stocked waits until engines wait.
func (e *beginnings) stocked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := errors.Join(e.d.Prepare(ctx, nil, nil), e.d.Stocked(ctx)); err != nil {
		return fmt.Errorf("start engines ahead: %w", err)
	}
	return nil
}

// begin times an engine, and one more module in it.
func (e *beginnings) begin(ctx context.Context, r *Run, contestant string, id onpath.VportID, round int) error {
	ns, err := e.wire(id)
	if err != nil {
		return err
	}
	null := onpath.WasmModule{Name: "null", Code: nullModule}
	began := time.Now()
	p, err := e.d.Start(ctx, onpath.RunSpec{ID: idOf(id), NetNS: ns, Labels: map[string]string{"tenant": "bench"}, Spec: specOf(null)})
	if err != nil {
		return err
	}
	if err := e.firstPacket(ctx, id, 0); err != nil {
		return err
	}
	r.sample(netservBegin, contestant, metricEngine, unitMillis, round, float64(time.Since(began).Microseconds())/1e3)
	began = time.Now()
	more := specOf(null, onpath.WasmModule{Name: "netmonitor", Code: functions.NetmonitorModule})
	if err := p.(onpath.Reconfigurable).Reconfigure(ctx, &more); err != nil {
		return err
	}
	if err := e.firstPacket(ctx, id, 1); err != nil {
		return err
	}
	r.sample(netservBegin, contestant, metricModule, unitMillis, round, float64(time.Since(began).Microseconds())/1e3)
	return p.Stop(ctx, time.Second)
}

// firstPacket sends until a module has been given a packet.
func (e *beginnings) firstPacket(ctx context.Context, id onpath.VportID, module int) error {
	var c net.Conn
	err := netnsrun.Do(e.node, func() (err error) {
		c, err = net.Dial("udp4", netip.AddrPortFrom(behind(id), 9).String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(200 * time.Microsecond) {
		if _, err := c.Write([]byte("first")); err != nil {
			return err
		}
		s, err := e.d.Control(idOf(id)).Status(ctx)
		if err != nil {
			return err
		}
		if len(s.Modules) > module && s.Modules[module].Packets > 0 {
			return nil
		}
	}
	return fmt.Errorf("engine %s: its module was given no packet within five seconds", idOf(id))
}

var privateLine = regexp.MustCompile(`(?m)^Private_(?:Clean|Dirty|Hugetlb):\s+(\d+) kB`)

// private is the memory that a process shares with no other, MiB.
func private(pid int) (mib float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for _, m := range privateLine.FindAllSubmatch(b, -1) {
		kb, _ := strconv.Atoi(string(m[1]))
		mib += float64(kb) / 1024
	}
	return mib, nil
}
