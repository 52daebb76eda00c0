// Package demo is `onpath demo`: the quickstart as a program. It emulates a
// network, runs a real server and real nodes in it, drives real traffic without
// and with a chain, and reads what changed from the real components. Its Stage
// also carries the end-to-end tests.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/examples"
	"github.com/onpath/onpath/internal/render"
	"github.com/onpath/onpath/internal/table"
	"github.com/onpath/onpath/lab"
)

// Options of the demonstration.
type Options struct {
	Images string    // directory with the built images: firewall, ids, shaper, cache
	JSON   string    // file for the figures; empty: none
	Keep   bool      // leave everything running
	Anew   bool      // remove one that runs and was to be kept
	Out    io.Writer // for people
	Dir    string    // state and logs; empty: DefaultDir
}

// DefaultDir is where the demonstration keeps its files while it runs.
const DefaultDir = "/run/onpath/demo"

type demo struct {
	Options
	stage  *Stage
	start  time.Time
	report Report
}

// Run runs the demonstration. It is an error if an effect that must be seen was
// not. Everything is taken down afterwards, also on error and when ctx ends,
// unless o.Keep.
func Run(ctx context.Context, o Options) (err error) {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	d := &demo{Options: o, start: time.Now()}
	if err := d.checkImages(); err != nil {
		return err
	}
	release, err := alone(o.Dir)
	if err != nil {
		return err
	}
	defer release()
	if kept(o.Dir) && !o.Anew {
		return &onpath.Error{Code: onpath.CodeExists, Message: "a demonstration that was to be kept runs in " + o.Dir,
			Remedy: "remove it with onpath demo --down, or do both at once with --anew"}
	}
	if _, err := os.Stat(filepath.Join(o.Dir, recordFile)); err == nil {
		d.say("removing the demonstration that an earlier run left in %s", o.Dir)
	}
	var left error // of taking it down
	stopped := false
	defer func() {
		if err != nil && stopped {
			err = interrupted(ctx, o.Dir, err, left)
		}
	}()
	if err := removeLeftover(ctx, o.Dir, io.Discard); err != nil {
		stopped = ctx.Err() != nil
		return fmt.Errorf("an earlier run could not be removed: %w", err)
	}
	defer func() {
		stopped = ctx.Err() != nil // before, not while it cleans up
		if _, begun := os.Stat(filepath.Join(o.Dir, recordFile)); d.stage == nil && begun != nil {
			err = errors.Join(err, os.RemoveAll(o.Dir)) // only files so far
		}
		if o.Keep && err == nil || d.stage == nil {
			return
		}
		if err != nil && !stopped {
			d.keepLogs()
		}
		d.say("cleaning up")
		left = d.takeDown()
		err = errors.Join(err, left)
	}()
	if err := d.setUp(ctx); err != nil {
		return err
	}
	if err := d.measure(ctx); err != nil {
		return err
	}
	d.report.judge()
	d.report.Print(o.Out)
	if o.JSON != "" {
		if err := writeJSON(o.JSON, d.report); err != nil {
			return err
		}
	}
	if missing := d.report.Failed(); len(missing) > 0 {
		return fmt.Errorf("not seen: %s", strings.Join(missing, "; "))
	}
	if o.Keep {
		if err := d.stage.keep(); err != nil {
			return err
		}
	}
	d.whereNext()
	return nil
}

// interrupted says what is left of a run that was broken off, and not at which
// step it was. left is why it could not be taken down.
func interrupted(ctx context.Context, dir string, err, left error) error {
	if _, gone := os.Stat(filepath.Join(dir, recordFile)); left == nil && gone != nil {
		return fmt.Errorf("interrupted; everything that it had made was removed: %w", ctx.Err())
	}
	if left == nil {
		left = err
	}
	return &onpath.Error{Code: onpath.CodeInternal, Message: "interrupted, and not everything could be removed: " + strings.ReplaceAll(left.Error(), "\n", "; "),
		Remedy: "remove the rest with onpath demo --down", Cause: ctx.Err()}
}

// say tells the next step with the time so far.
func (d *demo) say(format string, args ...any) {
	_ = table.Paragraph(d.Out, fmt.Sprintf("%6.1f s  ", time.Since(d.start).Seconds()), fmt.Sprintf(format, args...))
}

func (d *demo) checkImages() error {
	for _, name := range []string{"firewall", "ids", "shaper", "cache"} {
		if _, err := os.Stat(filepath.Join(d.Images, name)); err != nil {
			return &onpath.Error{Code: onpath.CodeNotFound, Place: d.Images, Message: "there is no image " + name,
				Remedy: "build the images with `make images`, or name their folder with --images", Cause: err}
		}
	}
	return nil
}

func (d *demo) setUp(ctx context.Context) error {
	if err := d.writeExamples(); err != nil {
		return err
	}
	topology, err := lab.ParseFile(filepath.Join(d.Dir, "examples/lab/quickstart.yaml"))
	if err != nil {
		return err
	}
	d.stage, err = SetUp(ctx, StageSpec{
		Topology: topology, Dir: d.Dir,
		Server: StageNode{Host: "server", Address: "10.255.0.10"},
		Nodes: []StageNode{
			{Name: "gw1", Host: "gw1", Address: "10.255.0.1", Cloudlet: "access"},
			{Name: "node1", Host: "node1", Address: "10.255.0.2", Cloudlet: "access"},
			{Name: "node2", Host: "node2", Address: "10.255.0.3", Cloudlet: "access"},
		},
		Progress: func(s string) { d.say("%s", s) },
	})
	if err != nil {
		return err
	}
	d.say("origin web server behind 20 Mbit/s and 20 ms")
	err = d.stage.Start("origin-server", originHost, d.stage.spec.Bin, "demo", "origin",
		"10.9.0.2:80", "10.9.0.2:8081", "10.9.0.2:9000", "10.9.0.66:80", "127.0.0.1:8888")
	if err != nil {
		return err
	}
	return d.stage.WaitFor(ctx, "the origin serves", 5*time.Second, func() (bool, error) {
		_, err := d.originStats(ctx)
		return err == nil, nil
	})
}

// writeExamples puts the examples beside links to the images, as in a checkout.
func (d *demo) writeExamples() error {
	images, err := filepath.Abs(d.Images)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(d.Dir); err != nil {
		return err
	}
	err = fs.WalkDir(examples.FS, ".", func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := examples.FS.ReadFile(p)
		if err != nil {
			return err
		}
		to := filepath.Join(d.Dir, "examples", p)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o644)
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(d.Dir, "bin"), 0o755); err != nil {
		return err
	}
	return os.Symlink(images, filepath.Join(d.Dir, "bin/images"))
}

func (d *demo) quickstart(file string) string {
	return filepath.Join(d.Dir, "examples/quickstart", file)
}

func (d *demo) measure(ctx context.Context) (err error) {
	d.report.TrafficAfter = time.Since(d.start)
	if d.report.Without, err = d.phase(ctx, "without chain"); err != nil {
		return err
	}
	d.say("onpath apply -f examples/quickstart/")
	applied := time.Now()
	if err := d.stage.Apply(ctx, d.quickstart("")); err != nil {
		return err
	}
	if err := d.stage.WaitActive(ctx, "web", time.Minute, func(s string) { d.say("  %s", s) }); err != nil {
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
func (d *demo) trace(ctx context.Context) (*onpath.Trace, error) {
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
	d.say("onpath %s", strings.Join(args, " "))
	out, err := d.stage.Onpath(ctx, append(args, "-o", "json")...)
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

func (d *demo) whereNext() {
	fmt.Fprintf(d.Out, "\n  Where to look next\n")
	if d.Keep {
		fmt.Fprintf(d.Out, `    The network keeps running. On this machine:
      SERVER=%s
      sudo bin/onpath --server $SERVER get chains     also: describe chain web, top, events
      sudo bin/onpath lab exec --lab %s client1 curl -si http://10.9.0.2/object/o1/10
    Remove it with: sudo bin/onpath demo --down
`, d.stage.Socket(), d.stage.Lab.Name())
		return
	}
	fmt.Fprint(d.Out, `    examples/quickstart/   what was applied: 3 files
    README.md              on two real machines; a chain of your own
    onpath demo --keep     leaves the network running, to look around in
`)
}

func (d *demo) takeDown() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := d.stage.TearDown(ctx)
	return errors.Join(err, os.RemoveAll(d.Dir))
}

// keepLogs saves the logs of a failed run where they survive the clean-up.
func (d *demo) keepLogs() {
	dir, err := os.MkdirTemp("", "onpath-demo-logs-")
	if err != nil {
		return
	}
	logs, _ := filepath.Glob(filepath.Join(d.Dir, "*.log"))
	for _, l := range logs {
		if b, err := os.ReadFile(l); err == nil {
			_ = os.WriteFile(filepath.Join(dir, filepath.Base(l)), b, 0o644)
		}
	}
	for _, kind := range []string{"chains", "instances", "events"} {
		if out, err := d.stage.Onpath(context.Background(), "get", kind, "-o", "yaml"); err == nil {
			_ = os.WriteFile(filepath.Join(dir, kind+".yaml"), out, 0o644)
		}
	}
	d.say("it failed; logs are kept in %s", dir)
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
