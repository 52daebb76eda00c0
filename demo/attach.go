package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/attach"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/lab"
)

func attachDemonstration() Demonstration {
	return Demonstration{
		Name:  "attach",
		Short: "Put a firewall and an IDS before a machine, under downloads",
		Long: `Emulate a cloud of three machines whose network nobody can program, run a real
server and real nodes in it, and put functions before one of them while 50
downloads run: a firewall in one command, copies to an IDS in another. Then take
both off again (GNFC, Figure 1).`,
		Seconds: 90,
		Images:  []string{"firewall", "ids"},
		Needs:   containers,
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &attachRun{Run: r}
			if err := d.setUp(ctx); err != nil {
				return nil, err
			}
			if err := d.show(ctx); err != nil {
				return nil, err
			}
			d.report.check()
			return &d.report, d.again(ctx)
		},
	}
}

const (
	attachedSite  = "http://10.20.0.11"
	attachedPort  = "10.20.0.11:23" // the firewall closes it
	attachedNode  = "vm1"
	functionsNode = "vm3"
)

type attachRun struct {
	*Run
	report attachReport
}

type attachReport struct {
	// Downloads ran while the functions were attached, and taken off again.
	Downloads []LoadResult `json:"downloads"`
	// Attached and Detached are how long the commands took, until traffic was steered.
	Attached time.Duration `json:"attached"`
	Copied   time.Duration `json:"copied"`
	Detached time.Duration `json:"detached"`
	// Open: port 23 took connections before, while and after the firewall stood there.
	Open [3]bool `json:"open"`
	// Way is how packets from vm1 to vm2 go, whose machine is attached, too.
	Way        []string              `json:"way"`
	WayDirect  bool                  `json:"wayDirect"`
	Alerts     []onpath.Notification `json:"alerts"`
	AlertAfter time.Duration         `json:"alertAfter"`
	Left       []string              `json:"left"` // objects after detach
	Checks     `json:"checks"`
}

func (d *attachRun) setUp(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/attach.yaml"))
	if err != nil {
		return err
	}
	spec := TestbedSpec{Topology: topology, Server: TestbedNode{Host: "server", Address: "10.20.0.10"}}
	for i, name := range []string{attachedNode, "vm2", functionsNode} {
		spec.Nodes = append(spec.Nodes, TestbedNode{Name: name, Host: name, Address: fmt.Sprintf("10.20.0.%d", 11+i), Cloudlet: "cloud",
			AttachHost: name != functionsNode})
	}
	if err := d.SetUp(ctx, spec); err != nil {
		return err
	}
	d.Say("web site on vm1, which also answers on port 23")
	if err := d.Testbed.Start("origin-server", attachedNode, d.Testbed.Bin(), "demo", "origin", "10.20.0.11:80", attachedPort); err != nil {
		return err
	}
	if err := d.Testbed.Start("origin-server2", "vm2", d.Testbed.Bin(), "demo", "origin", "10.20.0.12:80", "10.20.0.12:23"); err != nil {
		return err
	}
	return d.Testbed.Apply(ctx, d.Example("attach"))
}

func (d *attachRun) show(ctx context.Context) error {
	open, err := d.open(ctx)
	if err != nil {
		return err
	}
	d.report.Open[0] = open
	over := make(chan struct{})
	downloads := d.download(ctx, over)
	time.Sleep(time.Second)
	if d.report.Attached, err = d.run(ctx, "attach", attachedNode, "--through", "firewall", "--place", "name="+functionsNode); err != nil {
		return err
	}
	if d.report.Open[1], err = d.open(ctx); err != nil {
		return err
	}
	if err := d.way(ctx); err != nil {
		return err
	}
	if d.report.Copied, err = d.run(ctx, "attach", attachedNode, "--through", "ids", "--copy", "--place", "name="+functionsNode); err != nil {
		return err
	}
	if err := d.alert(ctx); err != nil {
		return err
	}
	if d.report.Detached, err = d.run(ctx, "detach", attachedNode); err != nil {
		return err
	}
	err = d.Testbed.WaitFor(ctx, "port 23 is open again", time.Minute, func() (bool, error) {
		d.report.Open[2], err = d.open(ctx)
		return d.report.Open[2], err
	})
	if err != nil {
		return err
	}
	close(over)
	d.Say("waiting for the end of the downloads")
	d.report.Downloads = <-downloads
	return d.left(ctx)
}

// again attaches both once more, for who looks at it afterwards.
func (d *attachRun) again(ctx context.Context) error {
	if !d.Keep {
		return nil
	}
	for _, args := range [][]string{{"--through", "firewall"}, {"--through", "ids", "--copy"}} {
		if _, err := d.run(ctx, append([]string{"attach", attachedNode, "--place", "name=" + functionsNode}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// run is a command as a user gives it, and how long it took.
func (d *attachRun) run(ctx context.Context, args ...string) (time.Duration, error) {
	d.Say("onpath %s", strings.Join(args, " "))
	began := time.Now()
	_, err := d.Testbed.Onpath(ctx, args...)
	return time.Since(began), err
}

// open reports whether port 23 takes a connection of the client's.
func (d *attachRun) open(ctx context.Context) (bool, error) {
	var p ProbeResult
	err := d.inHost(ctx, "client", &p, "demo", "probe", attachedPort, "--timeout", "700ms")
	return p.Open, err
}

// download has 50 downloads run at a time, 25 from vm2 and 25 from the client, until over
// is closed.
func (d *attachRun) download(ctx context.Context, over <-chan struct{}) <-chan []LoadResult {
	d.Say("50 downloads at a time from vm1, by vm2 and by a client elsewhere")
	out := make(chan []LoadResult, 1)
	results := make(chan LoadResult, 2)
	for _, host := range []string{"client", "vm2"} {
		go func() {
			var sum LoadResult
			for done := false; !done && ctx.Err() == nil; {
				select {
				case <-over:
					done = true // the downloads of the last round begin after all functions are detached
				default:
				}
				var r LoadResult
				if err := d.inHost(ctx, host, &r, "demo", "load", asJSON(LoadSpec{Base: attachedSite, Kind: "live", Objects: 50,
					Bytes: 200 << 10, Requests: 12_000, Parallel: 25, Timeout: 30 * time.Second, For: 3 * time.Second})); err != nil {
					r.Failed, r.Error = r.Failed+1, err.Error()
				}
				sum.Requests, sum.Failed, sum.Wrong, sum.Bytes = sum.Requests+r.Requests, sum.Failed+r.Failed, sum.Wrong+r.Wrong, sum.Bytes+r.Bytes
				sum.Took, sum.P95, sum.Error = sum.Took+r.Took, max(sum.P95, r.P95), cmp.Or(sum.Error, r.Error)
			}
			results <- sum
		}()
	}
	go func() { out <- []LoadResult{<-results, <-results} }()
	return out
}

// way asks how packets go from vm1 to vm2: by the function, and then straight on.
func (d *attachRun) way(ctx context.Context) error {
	d.Say("onpath trace 10.20.0.11 10.20.0.12 -p tcp/80")
	out, err := d.Testbed.Onpath(ctx, "trace", "10.20.0.11", "10.20.0.12", "-p", "tcp/80", "-o", "json")
	if err != nil {
		return err
	}
	var t onpath.Trace
	if err := json.Unmarshal(out, &t); err != nil {
		return err
	}
	for _, h := range t.Forward {
		if h.Kind != onpath.HopTunnel {
			d.report.Way = append(d.report.Way, h.Node)
		}
	}
	d.report.WayDirect = slices.Equal(d.report.Way, []string{attachedNode, functionsNode, "vm2"})
	return nil
}

// alert asks for a page that the IDS knows, and waits for what the IDS says of it.
func (d *attachRun) alert(ctx context.Context) error {
	d.Say("a request for /admin")
	asked := time.Now()
	err := d.Testbed.WaitFor(ctx, "the alert arrives", time.Minute, func() (bool, error) {
		_ = d.inHost(ctx, "client", &LoadResult{}, "demo", "load", asJSON(LoadSpec{Base: attachedSite + "/admin", Kind: "object",
			Objects: 1, Bytes: 1, Requests: 1, Parallel: 1, Timeout: 5 * time.Second}))
		out, err := d.Testbed.Onpath(ctx, "notifications", "-o", "json")
		if err != nil {
			return false, err
		}
		if err := json.Unmarshal(out, &d.report.Alerts); err != nil {
			return false, err
		}
		return len(d.report.Alerts) > 0, nil
	})
	d.report.AlertAfter = time.Since(asked)
	return err
}

// left is what detaching has left of what attaching made.
func (d *attachRun) left(ctx context.Context) error {
	return d.Testbed.WaitFor(ctx, "instances are gone", 60*time.Second, func() (bool, error) {
		d.report.Left = nil
		for _, kind := range []string{"chains", "hosts", "instances"} {
			var list []struct{ Metadata onpath.Metadata }
			if err := d.Testbed.Get(ctx, &list, kind); err != nil {
				return false, err
			}
			for _, o := range list {
				if strings.Contains(o.Metadata.Name, attach.Name(attachedNode)) {
					d.report.Left = append(d.report.Left, kind+" "+o.Metadata.Name)
				}
			}
		}
		return len(d.report.Left) == 0, nil
	})
}

func (r *attachReport) check() {
	check := r.Checks.add
	requests, bad, why := 0, 0, ""
	for _, l := range r.Downloads {
		requests += l.Requests
		bad += l.Failed + l.Wrong
		why += " " + l.Error
	}
	check(bad == 0 && requests >= 100, "attaching and detaching breaks no download", "%d of %d failed%s", bad, requests, strings.TrimRight(why, " "))
	check(r.Open[0] && !r.Open[1] && r.Open[2], "the firewall stands before vm1, and only while it is attached",
		"port 23 open before: %t, attached: %t, detached: %t", r.Open[0], r.Open[1], r.Open[2])
	check(r.WayDirect, "from the function packets go straight on to the other machine", "%s", strings.Join(r.Way, " → "))
	first := "none"
	if len(r.Alerts) > 0 {
		first = fmt.Sprintf("%s: %s", r.Alerts[0].Instance, r.Alerts[0].Title)
	}
	check(len(r.Alerts) > 0, "the IDS's alert arrives as a notification", "%s", first)
	check(len(r.Left) == 0, "nothing is left", "%d objects of it stay%s", len(r.Left), strings.Join(append([]string{""}, r.Left...), " "))
}

// Print writes the figures for people.
func (r *attachReport) Print(w io.Writer) {
	fmt.Fprintln(w)
	t := table.New("COMMAND", ">TOOK")
	t.Row("attach vm1 --through firewall", msText(r.Attached))
	t.Row("attach vm1 --through ids --copy", msText(r.Copied))
	t.Row("detach vm1", msText(r.Detached))
	_ = t.Write(w)
	fmt.Fprintln(w)
	r.Checks.print(w)
}
