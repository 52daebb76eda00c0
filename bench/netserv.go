package bench

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/queue"
	"github.com/onpath/onpath/bench/traffic"
	"github.com/onpath/onpath/functions"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/runtime/wasm"
)

//go:embed modules/null.wasm
var nullModule []byte

// The cases of netserv: the smallest packets, and a SIP NOTIFY of 340 bytes, as the paper
// has them.
const (
	netservSmall = "64B"
	netservSIP   = "340B, NOTIFY"
)

// metricProcess is the CPU time of a packet in the process that decides on it, with what
// the kernel does on its behalf.
const metricProcess = "CPU of the process"

// netserv measures Figures 10 and 11 of the NetServ paper: the maximum loss-free rate
// through modules. The paper's ratios stand in the targets' texts.
func netserv() Benchmark {
	return Benchmark{
		Name: "netserv", rounds: 2, cost: cost{15 * time.Second, 75 * time.Second},
		Question: "one CPU forwards through a packet module of a tenant's own: what does each layer take? (NetServ, Figures 10 and 11)",
		Targets: append(beginTargets(), []Target{
			{Text: "null module: ≥ 0.95 of the engine without one (NetServ 0.51)", Case: netservSmall, Contestant: "wasm-null",
				Metric: MetricRate, Of: "engine", Min: 0.95},
			{Text: "NetMonitor: ≥ 0.95 of the null module", Case: netservSmall, Contestant: "wasm-netmonitor",
				Metric: MetricRate, Of: "wasm-null", Min: 0.95},
			{Text: "keep-alive: ≥ 0.85 of NetMonitor (NetServ 0.64)", Case: netservSIP, Contestant: "wasm-keepalive",
				Metric: MetricRate, Of: "wasm-netmonitor", Min: 0.85},
			{Text: "NetMonitor: ≥ 1.1 × nfqueue in a container", Case: netservSmall, Contestant: "wasm-netmonitor",
				Metric: MetricRate, Of: "nfqueue", Min: 1.1},
			{Text: "NetMonitor as ebpf: ≥ 1.8 × plain Linux", Case: netservSmall, Contestant: "ebpf-netmonitor",
				Metric: MetricRate, Of: "linux", Min: 1.8},
		}...),
		run: runNetserv,
	}
}

func netservRouters() []router {
	return []router{
		linuxRouter(), queueInstance(), engineRouter("engine"),
		engineRouter("wasm-null", onpath.WasmModule{Name: "null", Code: nullModule}),
		engineRouter("wasm-netmonitor", onpath.WasmModule{Name: "netmonitor", Code: functions.NetmonitorModule}),
		engineRouter("wasm-keepalive", onpath.WasmModule{Name: "keepalive", Code: functions.SIPKeepAliveModule, Config: onpath.Env{"dry": "1"}}),
		inlineRouter("ebpf-netmonitor", functions.NetmonitorObject, 1, 0, onXDP),
	}
}

func runNetserv(ctx context.Context, r *Run) (err error) {
	lines, err := r.routers(ctx, netservRouters())
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	for _, kase := range []string{netservSmall, netservSIP} {
		err := abba(ctx, r.Rounds(), lines, func(round int, c built) error {
			r.say("round %d of %d, %s, %s", round+1, r.Rounds(), kase, c.name)
			job := r.netservJob(kase)
			if err := c.establish(ctx, job.Flows); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			t, err := pick(r, c.maximum, c.try)(ctx, job)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", c.name, kase, err)
			}
			r.sample(kase, c.name, MetricRate, "packets/s", round, t.rate())
			if t.received == 0 { // on a busy machine nobody came to it
				return nil
			}
			r.sample(kase, c.name, MetricCPU, "ns/packet", round, t.cpu())
			if len(c.processes) > 0 { // which others on the machine do not disturb
				r.sample(kase, c.name, metricProcess, "ns/packet", round, t.process())
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if err := r.beginnings(ctx); err != nil {
		return err
	}
	return r.profileMissed(ctx, func(kase, contestant string) (func() error, error) {
		i := slices.IndexFunc(lines, func(c built) bool { return c.name == contestant })
		if i < 0 {
			return nil, nil
		}
		job := r.netservJob(kase)
		return func() error {
			_, err := lines[i].try(ctx, job)
			return err
		}, lines[i].establish(ctx, job.Flows)
	})
}

// netservJob is a trial's traffic: one user agent's.
func (r *Run) netservJob(kase string) traffic.Job {
	j := traffic.Job{Flows: flowsOf(1), Time: pick(r, 700*time.Millisecond, 100*time.Millisecond)}
	if j.Flows.ToPort = 5060; kase == netservSIP {
		j.Payload = notify(340 - (traffic.FrameLen - 14))
	}
	return j
}

// notify is a keep-alive of so many bytes, as SIP user agents send them.
func notify(size int) []byte {
	const text = "NOTIFY sip:10.64.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP 10.16.0.0:1024;branch=z9hG4bK7d1f0a\r\nMax-Forwards: 70\r\n" +
		"From: <sip:agent@10.16.0.0>;tag=3a9c\r\nTo: <sip:10.64.0.1>\r\nCall-ID: 5f0e61@10.16.0.0\r\nCSeq: 1 NOTIFY\r\nEvent: keep-alive\r\n"
	const end = "Content-Length: 0\r\n\r\n"
	fill := "X-Fill: " + strings.Repeat("x", size-len(text)-len(end)-len("X-Fill: \r\n")) + "\r\n"
	return []byte(text + fill + end)
}

// engineYAML is a chain through an engine, whatever its modules.
var engineYAML = object(onpath.KindFunction, "engine", fmt.Sprintf(`{wasm: {modules: [{name: "null", module: "null", code: %s}]}}`,
	base64.StdEncoding.EncodeToString(nullModule))) + throughEach("engine", 1, netServers.String())

// engineRouter is onpath's data path and a wasm function's engine behind it, on one CPU.
func engineRouter(name string, modules ...onpath.WasmModule) router {
	return router{name, func(ctx context.Context, r *Run, l *line) error {
		if r.Program == "" {
			return lacking("it runs the onpath program, which was not named")
		}
		ns := ""
		b := onpathRouter(name, 0, onTC, engineYAML, func(_ *line, list []instance) error { ns = list[0].ns; return nil })
		if err := b.build(ctx, r, l); err != nil {
			return err
		}
		return l.startEngine(ctx, r, ns, modules)
	}}
}

// startEngine starts an engine in an instance's namespace, pinned to the CPU that forwards.
func (l *line) startEngine(ctx context.Context, r *Run, ns string, modules []onpath.WasmModule) error {
	d, err := wasm.New(wasm.Options{Dir: filepath.Join(l.Dir(), "wasm"), Cgroup: "/onpath-bench-" + filepath.Base(l.Dir()), Program: r.Program, Log: r.Log})
	if err != nil {
		return err
	}
	l.After(func() error { return errors.Join(d.Remove(context.Background()), d.Close()) })
	p, err := d.Start(ctx, onpath.RunSpec{ID: "engine", NetNS: ns, Labels: map[string]string{"tenant": "bench"}, Spec: onpath.FunctionSpec{
		Wasm: &onpath.WasmSpec{Modules: modules}, Packets: onpath.PacketsKeep,
	}})
	if err != nil {
		return err
	}
	if err := pinProcess(p.Pid(), l.cpu); err != nil {
		return err
	}
	l.keep(p.Pid())
	return nil
}

// queueInstance is nfqueue in an instance that onpath steers through: a container's
// namespace, whose kernel forwards what the process lets pass.
func queueInstance() router {
	return router{"nfqueue", func(ctx context.Context, r *Run, l *line) error {
		if r.Program == "" {
			return lacking("it runs the onpath program, which was not named")
		}
		ns := ""
		b := onpathRouter("nfqueue", 0, onTC, throughHops(1, netServers.String()), func(_ *line, list []instance) error {
			ns = list[0].ns
			return nil
		})
		if err := b.build(ctx, r, l); err != nil {
			return err
		}
		if err := netnsrun.Do(ns, queue.Install); err != nil {
			return lacking(fmt.Sprintf("this kernel does not queue packets: %v", err))
		}
		return l.serveQueue(ctx, r, ns)
	}}
}
