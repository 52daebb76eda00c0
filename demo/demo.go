// Package demo is `onpath demo`: each of its demonstrations emulates a network,
// runs a real server and real nodes in it, drives real traffic, and reads what
// changed from the real components. The first is the quickstart as a program. Its
// Testbed also carries the end-to-end tests.
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
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/examples"
)

// Demonstration is one main job of onpath, shown on real traffic.
type Demonstration struct {
	Name    string // the subcommand; "" is what `onpath demo` shows by itself
	Short   string // one line for --help
	Long    string
	Seconds int      // about how long it takes
	Images  []string // folders of --images that it needs
	Needs   []string // programs, and files by their paths, that the machine has to have
	Runs    int      // how often it times each thing; 0: it has no say
	// Show sets up a testbed (Run.SetUp), drives traffic and returns what it found.
	Show func(ctx context.Context, r *Run) (Figures, error)
	// Next prints where to look afterwards; nil: nowhere.
	Next func(r *Run)
}

// Figures are what a demonstration found. --json writes them.
type Figures interface {
	// Print writes them for people.
	Print(w io.Writer)
	// Failed lists the effects that must have been seen and were not.
	Failed() []string
}

// All lists the demonstrations; the first is shown where none is named. Each has a
// file of its own.
func All() []Demonstration {
	return []Demonstration{chainDemonstration(), moduleDemonstration(), signalDemonstration(), reserveDemonstration(),
		scaleDemonstration(), accelerateDemonstration(), attachDemonstration(), trustDemonstration(),
		pairDemonstration(), cdnDemonstration(), anywhereDemonstration()}
}

// Options of a demonstration.
type Options struct {
	Images string // directory with the built images
	JSON   string // file for the figures; empty: none
	Runs   int    // instead of Demonstration.Runs; 0: as that says
	Keep   bool   // leave everything running
	// Console: with Keep, also the web pages, at an address that is told.
	Console bool
	Anew    bool      // remove one that runs and was to be kept
	Out     io.Writer // for people
	Dir     string    // state and logs; empty: DefaultDir
}

// DefaultDir is where the demonstration keeps its files while it runs.
const DefaultDir = "/run/onpath/demo"

// Run is one run of a demonstration.
type Run struct {
	Options
	Testbed *Testbed // nil until SetUp
	start   time.Time
}

// Show runs a demonstration. It is an error if an effect that must be seen was
// not. Everything is taken down afterwards, also on error and when ctx ends,
// unless o.Keep.
func Show(ctx context.Context, what Demonstration, o Options) (err error) {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil { // hosts share it by its path
		return err
	}
	if o.Runs == 0 {
		o.Runs = what.Runs
	}
	d := &Run{Options: o, start: time.Now()}
	if err := d.checkImages(what.Images); err != nil {
		return err
	}
	if err := what.checkTools(); err != nil {
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
		d.Say("removing the demonstration that an earlier run left in %s", o.Dir)
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
		if _, begun := os.Stat(filepath.Join(o.Dir, recordFile)); d.Testbed == nil && begun != nil {
			err = errors.Join(err, os.RemoveAll(o.Dir)) // only files so far
		}
		if o.Keep && err == nil || d.Testbed == nil {
			return
		}
		if err != nil && !stopped {
			d.keepLogs()
		}
		d.Say("cleaning up")
		left = d.takeDown()
		err = errors.Join(err, left)
	}()
	if err := d.writeExamples(); err != nil {
		return err
	}
	figures, err := what.Show(ctx, d)
	if err != nil {
		return err
	}
	figures.Print(o.Out)
	if o.JSON != "" {
		if err := writeJSON(o.JSON, figures); err != nil {
			return err
		}
	}
	if missing := figures.Failed(); len(missing) > 0 {
		return fmt.Errorf("not seen: %s", strings.Join(missing, "; "))
	}
	if o.Keep {
		if err := d.stay(ctx, what); err != nil {
			return err
		}
	}
	if what.Next != nil {
		what.Next(d)
	}
	return nil
}

// stay leaves everything running, and says where to look.
func (d *Run) stay(ctx context.Context, what Demonstration) error {
	if d.Testbed.Pid(serverProcess) == 0 { // its death was part of what was shown
		if err := d.Testbed.StartServer(ctx); err != nil {
			return err
		}
	}
	if d.Console {
		address, err := d.Testbed.Console(ctx)
		if err != nil {
			return err
		}
		d.Say("%s", address)
		d.Say("the address holds once; the next one is written to %s then", d.Testbed.process(consoleProcess).log)
	}
	if err := d.Testbed.keep(); err != nil {
		return err
	}
	if what.Next == nil {
		d.Say("it keeps running, for onpath --server %s get all; remove it with %s --down",
			d.Testbed.Socket(), strings.TrimSpace("onpath demo "+what.Name))
	}
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
	return &onpath.Error{Code: onpath.CodeInternal,
		Message: "interrupted, and not everything could be removed: " + strings.ReplaceAll(left.Error(), "\n", "; "),
		Remedy:  "remove the rest with onpath demo --down", Cause: ctx.Err()}
}

// Say tells the next step with the time so far.
func (d *Run) Say(format string, args ...any) {
	_ = table.Paragraph(d.Out, fmt.Sprintf("%6.1f s  ", time.Since(d.start).Seconds()), fmt.Sprintf(format, args...))
}

func (d *Run) checkImages(needed []string) error {
	for _, name := range needed {
		if _, err := os.Stat(filepath.Join(d.Images, name)); err != nil {
			return &onpath.Error{Code: onpath.CodeNotFound, Place: d.Images, Message: "there is no image " + name,
				Remedy: "build it with sudo onpath images build --out " + d.Images + " functions/" + name +
					" (make images builds all), or name their folder with --images", Cause: err}
		}
	}
	return nil
}

// SetUp brings a testbed up and tells each step. Bin, Dir and Progress of the
// specification are the run's own.
func (d *Run) SetUp(ctx context.Context, spec TestbedSpec) (err error) {
	spec.Dir, spec.Progress = d.Dir, func(s string) { d.Say("%s", s) }
	d.Testbed, err = SetUp(ctx, spec)
	return err
}

// Example is the path of one of the examples' files or folders.
func (d *Run) Example(path string) string { return filepath.Join(d.Dir, "examples", path) }

// writeExamples puts the examples beside links to the images, as in a checkout.
func (d *Run) writeExamples() error {
	if err := os.RemoveAll(d.Dir); err != nil {
		return err
	}
	err := fs.WalkDir(examples.FS, ".", func(p string, e fs.DirEntry, err error) error {
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
	if d.Images == "" {
		return nil
	}
	images, err := filepath.Abs(d.Images)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(d.Dir, "bin"), 0o755); err != nil {
		return err
	}
	return os.Symlink(images, filepath.Join(d.Dir, "bin/images"))
}

func (d *Run) takeDown() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := d.Testbed.TearDown(ctx)
	return errors.Join(err, os.RemoveAll(d.Dir))
}

// keepLogs saves the logs of a failed run where they survive the clean-up.
func (d *Run) keepLogs() {
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
		if out, err := d.Testbed.Onpath(context.Background(), "get", kind, "-o", "yaml"); err == nil {
			_ = os.WriteFile(filepath.Join(dir, kind+".yaml"), out, 0o644)
		}
	}
	d.Say("it failed; logs are kept in %s", dir)
}

func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// Check is one effect that must have been seen.
type Check struct {
	What string `json:"what"`
	Seen bool   `json:"seen"`
	How  string `json:"how"`
}

// Checks are the effects of one demonstration.
type Checks []Check

func (c *Checks) add(seen bool, what, how string, args ...any) {
	*c = append(*c, Check{What: what, Seen: seen, How: fmt.Sprintf(how, args...)})
}

// Failed lists the effects that were not seen.
func (c Checks) Failed() (missing []string) {
	for _, one := range c {
		if !one.Seen {
			missing = append(missing, one.What+" ("+one.How+")")
		}
	}
	return missing
}

func (c Checks) print(w io.Writer) {
	for _, one := range c {
		mark := "seen   "
		if !one.Seen {
			mark = "NOT SEEN"
		}
		_ = table.Paragraph(w, "  "+mark+" ", one.What+": "+one.How)
	}
}
