package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/onpath/onpath/lab"
)

func moduleDemonstration() Demonstration {
	return Demonstration{
		Name:  "module",
		Short: "Show a packet module from its source to the path",
		Long: `Build one C source to WebAssembly and to eBPF, put the module on the path of real
traffic, count what it drops, replace it by a new version under numbered
datagrams, and set a module beside it that does not come back from some packets.
It needs clang, lld and libbpf-dev (scripts/setup module installs them).`,
		Seconds: 60,
		Needs:   []string{"clang", "wasm-ld", "/usr/include/bpf/bpf_helpers.h"},
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &moduleRun{Run: r}
			err := d.show(ctx)
			return &d.figures, err
		},
		Next: modulesNext,
	}
}

func modulesNext(d *Run) {
	fmt.Fprint(d.Out, "\n  Where to look next\n    docs/modules.md        a module of your own\n")
	if !d.Keep {
		fmt.Fprint(d.Out, "    onpath demo module --keep   leaves the network running, to try it in\n")
		return
	}
	fmt.Fprintf(d.Out, `    The network keeps running. On this machine:
      export ONPATH_SERVER=%s
      sudo -E onpath delete chain filtered      makes room for a chain of yours between the two:
      sudo onpath lab exec --lab %s client ping -c1 10.9.0.2
    Remove it with: sudo onpath demo module --down
`, d.Testbed.Socket(), d.Testbed.Lab.Name())
}

// ModuleFigures are what the demonstration found.
type ModuleFigures struct {
	Build    time.Duration `json:"build"` // ns, both targets
	Applied  time.Duration `json:"applied"`
	Replaced NumbersResult `json:"replaced"`
	Second   NumbersResult `json:"second"`
	Checks   `json:"checks"`
}

// Print implements Figures.
func (f *ModuleFigures) Print(w io.Writer) {
	fmt.Fprintf(w, "\n  One source, built for both targets in %s; on the path %s after apply.\n", round(f.Build), round(f.Applied))
	fmt.Fprintf(w, "  Replaced under %d numbered datagrams: %d lost. Beside a hostile module: %d of %d lost.\n\n",
		f.Replaced.Sent, f.Replaced.Lost(), f.Second.Lost(), f.Second.Sent)
	f.print(w)
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// moduleRun is a run of the demonstration.
type moduleRun struct {
	*Run
	figures ModuleFigures
}

// The ports that the origin echoes at: one that no module minds, the one that the module
// drops, the one that the hostile module does not come back from.
const (
	freePort, droppedPort, hostilePort = 7000, 53, 666
	numbersRate                        = 2000 // a second
	originAddress                      = "10.9.0.2"
)

func (d *moduleRun) show(ctx context.Context) error {
	for _, step := range []func(context.Context) error{d.setUp, d.build, d.apply, d.replace, d.contain} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *moduleRun) setUp(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/module.yaml"))
	if err != nil {
		return err
	}
	err = d.SetUp(ctx, TestbedSpec{
		Topology: topology,
		Server:   TestbedNode{Host: "server", Address: "10.255.0.10"},
		Nodes:    []TestbedNode{{Name: "gw1", Host: "gw1", Address: "10.255.0.1", Cloudlet: "access"}},
	})
	if err != nil {
		return err
	}
	err = d.Testbed.Start("echo", "origin", d.Testbed.Bin(), "demo", "echo",
		fmt.Sprintf(":%d", freePort), fmt.Sprintf(":%d", droppedPort), fmt.Sprintf(":%d", hostilePort))
	if err != nil {
		return err
	}
	return d.Testbed.WaitFor(ctx, "the origin answers", time.Minute, func() (bool, error) {
		r, err := d.numbers(ctx, freePort, 100*time.Millisecond)
		return err == nil && r.Back > 0, nil // until it listens, the client's socket is refused
	})
}

// numbers sends numbered datagrams to a port of the origin.
func (d *moduleRun) numbers(ctx context.Context, port int, long time.Duration) (r NumbersResult, err error) {
	err = d.inHost(ctx, "client", &r, "demo", "numbers", asJSON(NumbersSpec{
		To: fmt.Sprintf("%s:%d", originAddress, port), Rate: numbersRate, For: long,
	}))
	return r, err
}

// build makes modules of the sources, as a user does.
func (d *moduleRun) build(ctx context.Context) error {
	for _, made := range []string{"filter.wasm", "hostile.wasm"} { // by whoever wrote the examples
		if err := os.Remove(d.Example("module/" + made)); err != nil {
			return err
		}
	}
	started := time.Now()
	for _, source := range []string{"filter.c", "hostile.c"} {
		d.Say("onpath function build %s", source)
		out, err := d.Testbed.Onpath(ctx, "function", "build", d.Example("module/"+source))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(out)) {
			d.Say("  %s", strings.TrimSpace(line))
		}
		if source == "filter.c" {
			d.figures.Build = time.Since(started)
			_, wasm := os.Stat(d.Example("module/filter.wasm"))
			_, ebpf := os.Stat(d.Example("module/filter.o"))
			d.figures.add(wasm == nil && ebpf == nil, "one source gives a module and an object", "%s", round(d.figures.Build))
		}
	}
	for _, file := range []string{"filter.wasm", "filter.o"} {
		d.Say("onpath function check %s", file)
		if _, err := d.Testbed.Onpath(ctx, "function", "check", d.Example("module/"+file)); err != nil {
			return err
		}
	}
	return nil
}

func (d *moduleRun) apply(ctx context.Context) error {
	before, err := d.numbers(ctx, droppedPort, 500*time.Millisecond)
	if err != nil {
		return err
	}
	d.figures.add(before.Back > 0, "without the module, datagrams to port 53 pass", "%d of %d", before.Back, before.Sent)
	if err := d.Testbed.Apply(ctx, d.Example("module/access.yaml")); err != nil {
		return err
	}
	d.Say("onpath apply -f filter.yaml")
	started := time.Now()
	if err := d.Testbed.Apply(ctx, d.Example("module/filter.yaml")); err != nil {
		return err
	}
	if err := d.Testbed.WaitActive(ctx, "filtered", time.Minute, func(s string) { d.Say("  %s", s) }); err != nil {
		return err
	}
	d.figures.Applied = time.Since(started)
	dropped, err := d.numbers(ctx, droppedPort, 500*time.Millisecond)
	if err != nil {
		return err
	}
	passed, err := d.numbers(ctx, freePort, 500*time.Millisecond)
	if err != nil {
		return err
	}
	d.figures.add(dropped.Back == 0 && dropped.Sent > 0, "the module drops port 53", "%d of %d came back", dropped.Back, dropped.Sent)
	d.figures.add(passed.Lost() == 0 && passed.Sent > 0, "and nothing else", "%d of %d to port 7000 came back", passed.Back, passed.Sent)
	return d.logged(ctx, fmt.Sprintf("dropped %d", dropped.Sent), "the module's own counts say so")
}

// logged waits until the instance's log has a text.
func (d *moduleRun) logged(ctx context.Context, text, what string) error {
	last := ""
	err := d.Testbed.WaitFor(ctx, what, time.Minute, func() (bool, error) {
		id, err := d.Testbed.InstanceOf(ctx, "filtered-filter")
		if err != nil {
			return false, err
		}
		out, err := d.Testbed.Onpath(ctx, "logs", id)
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, text) {
				last = strings.TrimSpace(line)
			}
		}
		return last != "", nil
	})
	d.figures.add(err == nil, what, "%s", last)
	return ctx.Err()
}

// during sends numbered datagrams while f goes on.
func (d *moduleRun) during(ctx context.Context, f func() error) (r NumbersResult, err error) {
	type answer struct {
		r   NumbersResult
		err error
	}
	done := make(chan answer, 1)
	go func() {
		r, err := d.numbers(ctx, freePort, 8*time.Second)
		done <- answer{r, err}
	}()
	time.Sleep(time.Second)
	ferr := f()
	a := <-done
	if ferr != nil {
		return a.r, ferr
	}
	return a.r, a.err
}

// replace builds another version of the source, and applies it under traffic.
func (d *moduleRun) replace(ctx context.Context) (err error) {
	file := d.Example("module/filter.c")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text = []byte(strings.Replace(string(text), `" dropped "`, `" refused "`, 1))
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	d.Say("a new version, under %d numbered datagrams a second", numbersRate)
	d.figures.Replaced, err = d.during(ctx, func() error {
		if _, err := d.Testbed.Onpath(ctx, "function", "build", file); err != nil {
			return err
		}
		if err := d.Testbed.Apply(ctx, d.Example("module/filter.yaml")); err != nil {
			return err
		}
		return d.logged(ctx, "refused", "the new version is on the path")
	})
	r := d.figures.Replaced
	d.figures.add(err == nil && r.Lost() == 0, "no packet is lost while the module is replaced", "%d of %d came back", r.Back, r.Sent)
	return err
}

// contain sets a hostile module beside the other.
func (d *moduleRun) contain(ctx context.Context) (err error) {
	d.Say("onpath apply -f hostile.yaml: a module that does not come back from port 666")
	d.figures.Second, err = d.during(ctx, func() error {
		if err := d.Testbed.Apply(ctx, d.Example("module/hostile.yaml")); err != nil {
			return err
		}
		time.Sleep(time.Second)
		if _, err := d.numbers(ctx, hostilePort, 100*time.Millisecond); err != nil {
			return err
		}
		return d.logged(ctx, "steps for one event", "the hostile module leaves the path")
	})
	r := d.figures.Second
	d.figures.add(err == nil && r.Lost() == 0, "the module beside it loses nothing", "%d of %d came back", r.Back, r.Sent)
	return err
}
