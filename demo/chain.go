package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/lab"
)

func chainDemonstration() Demonstration {
	return Demonstration{
		Short: "Show a chain at work in an emulated network, and what it changes",
		Long: `Emulate a network, run a real server and three real nodes in it, drive web
traffic without and with a chain of nftables, Suricata, tc and squid, and print
what changed.`,
		Seconds: 120,
		Images:  []string{"firewall", "ids", "shaper", "cache"},
		Needs:   containers,
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &chainRun{Run: r}
			if err := d.setUp(ctx); err != nil {
				return nil, err
			}
			if err := d.measure(ctx); err != nil {
				return nil, err
			}
			d.report.check()
			return &d.report, nil
		},
		Next: whereNext,
	}
}

// chainRun is a run of the quickstart.
type chainRun struct {
	*Run
	report Report
}

func (d *chainRun) setUp(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/quickstart.yaml"))
	if err != nil {
		return err
	}
	err = d.SetUp(ctx, TestbedSpec{
		Topology: topology,
		Server:   TestbedNode{Host: "server", Address: "10.255.0.10"},
		Nodes: []TestbedNode{
			{Name: "gw1", Host: "gw1", Address: "10.255.0.1", Cloudlet: "access"},
			{Name: "node1", Host: "node1", Address: "10.255.0.2", Cloudlet: "access"},
			{Name: "node2", Host: "node2", Address: "10.255.0.3", Cloudlet: "access"},
		},
	})
	if err != nil {
		return err
	}
	d.Say("origin web server behind 20 Mbit/s and 20 ms")
	err = d.Testbed.Start("origin-server", originHost, d.Testbed.spec.Bin, "demo", "origin",
		"10.9.0.2:80", "10.9.0.2:8081", "10.9.0.2:9000", "10.9.0.66:80", "127.0.0.1:8888")
	if err != nil {
		return err
	}
	return d.Testbed.WaitFor(ctx, "the origin serves", time.Minute, func() (bool, error) {
		_, err := d.originStats(ctx)
		return err == nil, nil
	})
}

func (d *chainRun) measure(ctx context.Context) (err error) {
	d.report.TrafficAfter = time.Since(d.start)
	if d.report.Without, err = d.phase(ctx, "without chain"); err != nil {
		return err
	}
	d.Say("onpath apply -f examples/quickstart/")
	applied := time.Now()
	if err := d.Testbed.Apply(ctx, d.Example("quickstart")); err != nil {
		return err
	}
	if err := d.Testbed.WaitActive(ctx, "web", time.Minute, func(s string) { d.Say("  %s", s) }); err != nil {
		return err
	}
	d.report.ApplyToSteered = time.Since(applied)
	if d.report.With, err = d.phase(ctx, "with chain"); err != nil {
		return err
	}
	if d.report.Trace, err = d.trace(ctx); err != nil {
		return err
	}
	time.Sleep(time.Second) // Suricata writes its log once a second
	d.report.Functions, err = d.functions(ctx)
	return err
}

// trace follows one flow while it lives: a slow transfer of an object that the
// cache may not keep.
func (d *chainRun) trace(ctx context.Context) (*onpath.Trace, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// It is cut when the trace is made; its result does not matter.
		_ = d.inHost(ctx, "client1", &LoadResult{}, "demo", "load", asJSON(LoadSpec{Base: site, Kind: "live", Objects: 1, Bytes: 20 << 20, Requests: 1, Parallel: 1, Timeout: 20 * time.Second}))
	}()
	defer func() { cancel(); <-done }()
	time.Sleep(500 * time.Millisecond)
	args := []string{"trace", "10.1.0.11", "10.9.0.2", "-p", "tcp/80"}
	d.Say("onpath %s", strings.Join(args, " "))
	out, err := d.Testbed.Onpath(ctx, append(args, "-o", "json")...)
	if err != nil {
		return nil, err
	}
	t := new(onpath.Trace)
	if err := json.Unmarshal(out, t); err != nil {
		return nil, err
	}
	fmt.Fprintln(d.Out)
	return t, render.Trace(d.Out, t, false)
}

func whereNext(d *Run) {
	fmt.Fprintf(d.Out, "\n  Where to look next\n")
	if d.Keep {
		fmt.Fprintf(d.Out, `    The network keeps running. On this machine:
      SERVER=%s
      sudo bin/onpath --server $SERVER get chains     also: describe chain web, top, events
      sudo bin/onpath lab exec --lab %s client1 curl -si http://10.9.0.2/object/o1/10
    Remove it with: sudo bin/onpath demo --down
`, d.Testbed.Socket(), d.Testbed.Lab.Name())
		return
	}
	fmt.Fprint(d.Out, `    examples/quickstart/   what was applied: 3 files
    README.md              on real machines, wherever they are; a chain of your own
    onpath demo --keep     leaves the network running, to look around in
`)
}
