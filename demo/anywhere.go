package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/lab"
)

func anywhereDemonstration() Demonstration {
	return Demonstration{
		Name:  "anywhere",
		Short: "Put a firewall before a machine that is behind NAT",
		Long: `Emulate three machines in three networks, two of them behind NAT, and a network between
that passes UDP alone and that others can read. Each machine joins by one command. Put a
firewall, on the third, before one of them, and count what the network between sees in
clear while the first two talk through it (GNFC, II).`,
		Seconds: 60,
		Needs:   append([]string{"nft"}, containers...),
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &anywhereRun{Run: r}
			if err := d.setUp(ctx); err != nil {
				return nil, err
			}
			if err := d.show(ctx); err != nil {
				return nil, err
			}
			d.report.check()
			return &d.report, nil
		},
	}
}

// Where things are in examples/lab/cloud-nat.yaml.
var (
	anywhere1 = []string{"10.23.1.2", "fd23:1::2"} // vm1
	anywhere2 = []string{"10.23.2.2", "fd23:2::2"} // vm2
)

type anywhereRun struct {
	*Run
	report anywhereReport
}

type anywhereReport struct {
	// Joined is how long each machine took from its command until it was ready.
	Joined map[string]time.Duration `json:"joined"`
	// Reaches are the conditions of vm3 that say how it reaches the others.
	Reaches []onpath.Condition `json:"reaches"`
	Before  ExchangeResult     `json:"before"` // from vm1 to vm2
	// Attached is how long the command took, until traffic was steered.
	Attached time.Duration  `json:"attached"`
	Through  ExchangeResult `json:"through"`
	Wire     WireCount      `json:"wire"` // between, meanwhile
	// Inside is how many packets the firewall saw, in clear.
	Inside int64 `json:"inside"`
	// Open: port 23 of vm2 takes a connection of vm2's own, and of vm1's.
	Open   [2]bool  `json:"open"`
	Way    []string `json:"way"`
	Left   int      `json:"left"` // objects after detach
	Checks `json:"checks"`
}

func (d *anywhereRun) setUp(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/cloud-nat.yaml"))
	if err != nil {
		return err
	}
	spec := TestbedSpec{Topology: topology, Server: TestbedNode{Host: "server", Address: "203.0.113.6"}, HostImage: true}
	if err := d.SetUp(ctx, spec); err != nil {
		return err
	}
	d.report.Joined = map[string]time.Duration{}
	for _, name := range []string{"vm1", "vm2", "vm3"} {
		d.Say("on %s: onpath node --token WORD --attach host --host-image", name)
		began := time.Now()
		if err := d.Testbed.Join(ctx, TestbedNode{Name: name, Host: name, Cloudlet: "anywhere", AttachHost: true}); err != nil {
			return err
		}
		d.report.Joined[name] = time.Since(began)
	}
	args := []string{d.Testbed.Bin(), "demo", "exchange-server"}
	for _, a := range anywhere2 {
		args = append(args, net.JoinHostPort(a, exchangePort), net.JoinHostPort(a, "23"))
	}
	if err := d.Testbed.Start("exchange-server", "vm2", args...); err != nil {
		return err
	}
	return d.Testbed.Apply(ctx, d.Example("anywhere/firewall.yaml"))
}

// exchange has vm1 talk to vm2.
func (d *anywhereRun) exchange(ctx context.Context, long, timeout time.Duration) (r ExchangeResult, err error) {
	spec := ExchangeSpec{For: long, Timeout: timeout}
	for _, a := range anywhere2 {
		spec.To = append(spec.To, net.JoinHostPort(a, exchangePort))
	}
	return r, d.inHost(ctx, "vm1", &r, "demo", "exchange", asJSON(spec))
}

func (d *anywhereRun) show(ctx context.Context) (err error) {
	d.Say("vm1 asks vm2, which is behind another NAT")
	if d.report.Before, err = d.exchange(ctx, time.Second, 500*time.Millisecond); err != nil {
		return err
	}
	d.Say("onpath attach vm1 --through firewall --place name=vm3")
	began := time.Now()
	if _, err := d.Testbed.Onpath(ctx, "attach", "vm1", "--through", "firewall", "--place", "name=vm3"); err != nil {
		return err
	}
	d.report.Attached = time.Since(began)
	if err := d.reaches(ctx); err != nil {
		return err
	}
	if err := d.through(ctx); err != nil {
		return err
	}
	for i, host := range []string{"vm2", "vm1"} {
		var p ProbeResult
		err := d.inHost(ctx, host, &p, "demo", "probe", net.JoinHostPort(anywhere2[0], "23"), "--timeout", "1s")
		if d.report.Open[i] = p.Open; err != nil {
			return err
		}
	}
	if err := d.way(ctx); err != nil || d.Keep {
		return err
	}
	d.Say("onpath detach vm1")
	if _, err := d.Testbed.Onpath(ctx, "detach", "vm1"); err != nil {
		return err
	}
	var chains []onpath.Chain
	err = d.Testbed.Get(ctx, &chains, "chains")
	d.report.Left = len(chains)
	return err
}

// reaches waits until vm3 reaches both others, and keeps what it says of them.
func (d *anywhereRun) reaches(ctx context.Context) error {
	d.Say("onpath describe node vm3")
	return d.Testbed.WaitFor(ctx, "vm3 reaches vm1 and vm2", time.Minute, func() (bool, error) {
		var n onpath.Node
		if err := d.Testbed.Get(ctx, &n, "nodes", "vm3"); err != nil {
			return false, err
		}
		d.report.Reaches = slices.DeleteFunc(n.Status.Conditions, func(c onpath.Condition) bool {
			return !strings.HasPrefix(c.Type, onpath.ConditionTunnel) || c.Status != onpath.True
		})
		return len(d.report.Reaches) == 2, nil
	})
}

// through counts between the networks while vm1 and vm2 exchange data.
func (d *anywhereRun) through(ctx context.Context) error {
	const long = 4 * time.Second
	d.Say("vm1 and vm2 exchange data by IPv4 and IPv6; an eavesdropper before vm3 counts")
	err := d.Testbed.WaitFor(ctx, "vm1 reaches vm2", 30*time.Second, func() (bool, error) {
		r, err := d.exchange(ctx, 100*time.Millisecond, time.Second)
		return r.Done > 0, err
	})
	if err != nil {
		return err
	}
	spec := WireSpec{Device: "vm3", For: long + time.Second, Ends: [][2]string{{anywhere1[0], anywhere2[0]}, {anywhere1[1], anywhere2[1]}}}
	counted := make(chan error, 1)
	go func() { counted <- d.inHost(ctx, "internet", &d.report.Wire, "demo", "wire", asJSON(spec)) }()
	time.Sleep(300 * time.Millisecond)
	if d.report.Through, err = d.exchange(ctx, long, 5*time.Second); err != nil {
		return err
	}
	if err := <-counted; err != nil {
		return err
	}
	name, err := d.Testbed.InstanceOf(ctx, "attached-vm1-firewall")
	if err != nil {
		return err
	}
	out, err := d.Testbed.Onpath(ctx, "exec", name, "--", "nft", "list", "table", "inet", "firewall")
	d.report.Inside = int64(sumAfter(string(out), `counter packets (\d+) bytes \d+ accept`))
	return err
}

// way asks how packets go.
func (d *anywhereRun) way(ctx context.Context) error {
	out, err := d.Testbed.Onpath(ctx, "trace", anywhere1[0], anywhere2[0], "-p", "tcp/"+exchangePort, "-o", "json")
	if err != nil {
		return err
	}
	var t onpath.Trace
	if err := json.Unmarshal(out, &t); err != nil {
		return err
	}
	for _, h := range t.Forward {
		if h.Node != "" && (len(d.report.Way) == 0 || d.report.Way[len(d.report.Way)-1] != h.Node) {
			d.report.Way = append(d.report.Way, h.Node)
		}
	}
	return nil
}

func (r *anywhereReport) check() {
	check := r.Checks.add
	check(len(r.Joined) == 3, "three machines join by one command each, two of them from behind NAT",
		"vm1 after %.1f s, vm2 %.1f s, vm3 %.1f s", r.Joined["vm1"].Seconds(), r.Joined["vm2"].Seconds(), r.Joined["vm3"].Seconds())
	check(r.Before.Done == 0 && r.Before.Failed > 0, "before, vm1 does not reach vm2: their NATs are in between",
		"%d of %d exchanges", r.Before.Done, r.Before.Done+r.Before.Failed)
	var how []string
	encrypted := len(r.Reaches) == 2
	for _, c := range r.Reaches {
		how = append(how, strings.TrimPrefix(c.Type, onpath.ConditionTunnel)+": "+c.Message)
		encrypted = encrypted && c.Reason == onpath.ReasonWireGuard
	}
	check(encrypted, "vm3 reaches both by WireGuard, and says why", "%s", strings.Join(how, "; "))
	check(r.Through.Done > 0 && r.Through.Failed == 0 && r.Through.Wrong == 0,
		"through the firewall on vm3 all exchanges succeed, unchanged", "%d done, %d failed, %d changed, %.1f s after the command %s",
		r.Through.Done, r.Through.Failed, r.Through.Wrong, r.Attached.Seconds(), r.Through.Error)
	check(r.Inside > 0, "the firewall sees the packets in clear", "%d packets", r.Inside)
	check(r.Wire.Clear == 0 && r.Wire.All > 0, "an eavesdropper between them sees none in clear",
		"%d of %d packets", r.Wire.Clear, r.Wire.All)
	check(r.Open[0] && !r.Open[1], "the firewall closes port 23 of vm2 to vm1", "vm2 opens it: %t, vm1: %t", r.Open[0], r.Open[1])
	check(slices.Equal(r.Way, []string{"vm1", "vm3", "vm2"}), "onpath trace shows the way", "%s", strings.Join(r.Way, " → "))
	check(r.Left == 0, "afterwards no chain is left", "%d", r.Left)
}

// Print writes the figures for people.
func (r *anywhereReport) Print(w io.Writer) {
	fmt.Fprintln(w)
	t := table.New("VM1 TO VM2", ">EXCHANGES", ">FAILED", ">CHANGED", ">BETWEEN", ">IN CLEAR")
	t.Row("two NATs in between", strconv.Itoa(r.Before.Done), strconv.Itoa(r.Before.Failed), strconv.Itoa(r.Before.Wrong), "-", "-")
	t.Row("through a firewall on vm3", strconv.Itoa(r.Through.Done), strconv.Itoa(r.Through.Failed), strconv.Itoa(r.Through.Wrong),
		strconv.Itoa(r.Wire.All), strconv.Itoa(r.Wire.Clear))
	_ = t.Write(w)
	fmt.Fprintln(w)
	r.Checks.print(w)
}
