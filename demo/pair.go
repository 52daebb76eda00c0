package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/lab"
)

func pairDemonstration() Demonstration {
	return Demonstration{
		Name:  "pair",
		Short: "Encrypt between two cloudlets, and kill either half under load",
		Long: `Emulate two branches with a network between that others can read, run a real server
and a real node at each, and put the two halves of an IPsec tunnel (strongSwan) on the
way. Count what crosses the stretch between in clear, also while the halves are killed in
turn (PacketCloud, Figure 4).`,
		Seconds: 90,
		Images:  []string{"ipsec", "wanopt"},
		Needs:   containers,
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &pairRun{Run: r}
			if err := d.setUp(ctx); err != nil {
				return nil, err
			}
			if err := d.encrypt(ctx); err != nil {
				return nil, err
			}
			if err := d.optimise(ctx); err != nil {
				return nil, err
			}
			d.report.check()
			return &d.report, nil
		},
	}
}

// The branches' addresses, of both IP versions.
var (
	branch1 = []string{"10.1.0.2", "fd00:1::2"}
	branch2 = []string{"10.3.0.2", "fd00:3::2"}
)

type pairRun struct {
	*Run
	report pairReport
}

type pairReport struct {
	Without pairPhase   `json:"without"` // the chain
	With    pairPhase   `json:"with"`
	Killed  []pairPhase `json:"killed"`
	// Back is how long each half took until traffic went on after it was killed.
	Back    []time.Duration `json:"back"`
	Trace   *onpath.Trace   `json:"trace"`
	Verdict string          `json:"verdict"`
	// Transfers are those through the WAN optimiser.
	Transfers []pairTransfer `json:"transfers"`
	Checks    `json:"checks"`
}

// pairPhase is what crossed the stretch, and what came of the exchanges.
type pairPhase struct {
	Name  string         `json:"name"`
	Wire  WireCount      `json:"wire"`
	Calls ExchangeResult `json:"calls"`
}

// pairTransfer is one transfer there and back, and what crossed the stretch for it.
type pairTransfer struct {
	Name  string         `json:"name"`
	Bytes int            `json:"bytes"`
	Wire  WireCount      `json:"wire"`
	Calls ExchangeResult `json:"calls"`
}

func (t *pairTransfer) share() float64 { return float64(t.Wire.Bytes) / float64(t.Bytes) }

func (d *pairRun) setUp(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/pair.yaml"))
	if err != nil {
		return err
	}
	spec := TestbedSpec{Topology: topology, Server: TestbedNode{Host: "west", Address: "10.2.1.1"}, Nodes: []TestbedNode{
		{Name: "west", Host: "west", Address: "10.2.1.1", Cloudlet: "west"},
		{Name: "east", Host: "east", Address: "10.2.2.1", Cloudlet: "east"},
	}}
	if err := d.SetUp(ctx, spec); err != nil {
		return err
	}
	for _, n := range spec.Nodes {
		if err := d.uplinks(ctx, n); err != nil {
			return err
		}
	}
	args := []string{d.Testbed.Bin(), "demo", "exchange-server"}
	for _, a := range branch2 {
		args = append(args, net.JoinHostPort(a, exchangePort))
	}
	return d.Testbed.Start("branch2-server", "branch2", args...)
}

// uplinks has a node take up the devices that carry transit traffic.
func (d *pairRun) uplinks(ctx context.Context, n TestbedNode) error {
	text := fmt.Sprintf(`apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: %s}
spec:
  cloudlet: %s
  underlay: {address: %s}
  uplinks:
  - {name: access, device: branch, attach: router, side: access}
  - {name: core, device: core, attach: router, side: core}
`, n.Name, n.Cloudlet, n.Address)
	file := filepath.Join(d.Dir, n.Name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	return d.Testbed.Apply(ctx, file)
}

func (d *pairRun) encrypt(ctx context.Context) (err error) {
	if d.report.Without, err = d.phase(ctx, "without chain", 2*time.Second, nil); err != nil {
		return err
	}
	d.Say("onpath apply -f examples/pair/ipsec.yaml")
	if err := d.Testbed.Apply(ctx, d.Example("pair/ipsec.yaml")); err != nil {
		return err
	}
	if err := d.Testbed.WaitActive(ctx, "line", time.Minute, func(s string) { d.Say("  %s", s) }); err != nil {
		return err
	}
	err = d.Testbed.WaitFor(ctx, "the chain steers at both cloudlets", time.Minute, func() (bool, error) {
		var c onpath.Chain
		err := d.Testbed.Get(ctx, &c, "chains", "line")
		return len(c.Status.Cloudlets) == 2, err
	})
	if err != nil {
		return err
	}
	if d.report.With, err = d.phase(ctx, "with pair", 4*time.Second, nil); err != nil {
		return err
	}
	for _, side := range []string{onpath.PairA, onpath.PairB} {
		p, err := d.phase(ctx, "side "+side+" killed", 8*time.Second, func() error { return d.kill(ctx, side) })
		if err != nil {
			return err
		}
		d.report.Killed = append(d.report.Killed, p)
	}
	return d.explain(ctx)
}

// optimise takes the tunnel away and puts the halves of a WAN optimiser on the way.
func (d *pairRun) optimise(ctx context.Context) error {
	d.Say("onpath delete chain line; onpath apply -f examples/pair/wanopt.yaml")
	if _, err := d.Testbed.Onpath(ctx, "delete", "chain", "line"); err != nil {
		return err
	}
	if err := d.Testbed.Apply(ctx, d.Example("pair/wanopt.yaml")); err != nil {
		return err
	}
	err := d.Testbed.WaitFor(ctx, "chain thin steers at both cloudlets", time.Minute, func() (bool, error) {
		var c onpath.Chain
		err := d.Testbed.Get(ctx, &c, "chains", "thin")
		return len(c.Status.Cloudlets) == 2, err
	})
	if err != nil {
		return err
	}
	for _, t := range []struct{ name, data string }{{"10 MB, first", "data"}, {"10 MB, again", "data"}, {"10 MB of text, first", "text"}} {
		one := pairTransfer{Name: t.name, Bytes: 10 << 20}
		err := d.counted(ctx, &one.Wire, 8*time.Second, func() error {
			spec := ExchangeSpec{To: d.far()[:1], For: time.Second, Timeout: 20 * time.Second, Data: t.data, Bytes: one.Bytes, Once: true}
			return d.inHost(ctx, "branch1", &one.Calls, "demo", "exchange", asJSON(spec))
		})
		if err != nil {
			return err
		}
		d.report.Transfers = append(d.report.Transfers, one)
	}
	return nil
}

// counted counts on the stretch while do runs, and for as long as it says.
func (d *pairRun) counted(ctx context.Context, wire *WireCount, long time.Duration, do func() error) error {
	spec := WireSpec{Device: "west", Ends: [][2]string{{branch1[0], branch2[0]}, {branch1[1], branch2[1]}}, For: long}
	counted := make(chan error, 1)
	go func() { counted <- d.inHost(ctx, "between", wire, "demo", "wire", asJSON(spec)) }()
	time.Sleep(300 * time.Millisecond)
	err := do()
	return errors.Join(err, <-counted)
}

// explain asks for the trace and the proof.
func (d *pairRun) explain(ctx context.Context) error {
	out, err := d.Testbed.Onpath(ctx, "trace", branch1[0], branch2[0], "-p", "tcp/"+exchangePort, "-o", "json")
	if err != nil {
		return err
	}
	d.report.Trace = new(onpath.Trace)
	if err := json.Unmarshal(out, d.report.Trace); err != nil {
		return err
	}
	out, err = d.Testbed.Onpath(ctx, "verify", "-o", "json")
	if err != nil {
		return err
	}
	var v onpath.Verification
	err = json.Unmarshal(out, &v)
	d.report.Verdict = string(v.Verdict)
	return err
}

// kill ends all processes of the half at a side.
func (d *pairRun) kill(ctx context.Context, side string) error {
	list, err := d.Testbed.Instances(ctx)
	if err != nil {
		return err
	}
	k := slices.IndexFunc(list, func(i onpath.Instance) bool { return i.Spec.Pair != nil && i.Spec.Pair.Side == side })
	if k < 0 {
		return fmt.Errorf("no instance is side %s", side)
	}
	d.Say("killing %s on %s", list[k].Metadata.Name, list[k].Spec.Node)
	began := time.Now()
	_, _ = d.Testbed.Onpath(ctx, "exec", list[k].Metadata.Name, "--", "sh", "-c", "kill -9 -1") // it ends with its command
	err = d.Testbed.WaitFor(ctx, "traffic goes on", time.Minute, func() (bool, error) {
		var r ExchangeResult
		err := d.inHost(ctx, "branch1", &r, "demo", "exchange", asJSON(
			ExchangeSpec{To: d.far()[:1], For: 100 * time.Millisecond, Timeout: 300 * time.Millisecond}))
		return r.Done > 0, err
	})
	d.report.Back = append(d.report.Back, time.Since(began))
	return err
}

func (d *pairRun) far() (list []string) {
	for _, a := range branch2 {
		list = append(list, net.JoinHostPort(a, exchangePort))
	}
	return list
}

// phase counts on the stretch while the branches exchange data; do runs in the midst.
func (d *pairRun) phase(ctx context.Context, name string, long time.Duration, do func() error) (p pairPhase, err error) {
	d.Say("%s: exchanges over IPv4 and IPv6, counted between", name)
	p.Name = name
	var wg sync.WaitGroup
	var doErr error
	err = d.counted(ctx, &p.Wire, long+time.Second, func() error {
		if do != nil {
			wg.Go(func() {
				time.Sleep(time.Second)
				doErr = do()
			})
		}
		return d.inHost(ctx, "branch1", &p.Calls, "demo", "exchange", asJSON(ExchangeSpec{To: d.far(), For: long, Timeout: time.Second}))
	})
	wg.Wait()
	return p, errors.Join(err, doErr)
}

func (r *pairReport) check() {
	check := r.Checks.add
	check(r.Without.Wire.Clear > 0, "without the pair the stretch carries the branches' packets in clear", "%d packets", r.Without.Wire.Clear)
	for _, p := range append([]pairPhase{r.With}, r.Killed...) {
		check(p.Wire.Clear == 0 && p.Wire.Pairs > 0, p.Name+": nothing in clear on the stretch", "%d of %d packets in clear, %d of the pair",
			p.Wire.Clear, p.Wire.All, p.Wire.Pairs)
	}
	check(r.With.Calls.Failed == 0 && r.With.Calls.Done > 0, "all exchanges through the pair succeed",
		"%d of %d failed", r.With.Calls.Failed, r.With.Calls.Done+r.With.Calls.Failed)
	wrong := r.With.Calls.Wrong
	for _, p := range r.Killed {
		wrong += p.Calls.Wrong
	}
	check(wrong == 0, "every payload comes back unchanged", "%d differ", wrong)
	for i, p := range r.Killed {
		check(r.Back[i] < 15*time.Second && p.Calls.Done > 0, p.Name+": traffic goes on after its restart", "after %.1f s", r.Back[i].Seconds())
	}
	var way []string
	stretch := false
	for _, h := range r.Trace.Forward {
		way = append(way, string(h.Kind)+" "+h.Node)
		stretch = stretch || h.Kind == onpath.HopStretch
	}
	check(stretch, "onpath trace shows both halves and the stretch", "%s", strings.Join(way, " → "))
	for i, most := range []float64{0, 0.05, 0.5} {
		t := &r.Transfers[i]
		check(t.Calls.Done == 1 && (most == 0 || t.share() <= most), "through the optimiser: "+t.Name,
			"%.1f %% of the bytes on the stretch, %d of 1 back unchanged %s",
			100*t.share(), t.Calls.Done, t.Calls.Error)
	}
	check(r.Verdict == string(onpath.VerdictProved), "onpath verify proves both halves", "%s", r.Verdict)
}

// Print writes the figures for people.
func (r *pairReport) Print(w io.Writer) {
	fmt.Fprintln(w)
	t := table.New("PHASE", ">EXCHANGES", ">FAILED", ">CHANGED", ">ON THE STRETCH", ">IN CLEAR")
	for _, p := range append([]pairPhase{r.Without, r.With}, r.Killed...) {
		t.Row(p.Name, strconv.Itoa(p.Calls.Done), strconv.Itoa(p.Calls.Failed), strconv.Itoa(p.Calls.Wrong),
			strconv.Itoa(p.Wire.All), strconv.Itoa(p.Wire.Clear))
	}
	_ = t.Write(w)
	fmt.Fprintln(w)
	r.Checks.print(w)
}
