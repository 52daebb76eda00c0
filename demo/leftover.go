package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/filelock"
	"github.com/onpath/onpath/lab"
)

// record is what Down needs to know of a testbed whose program is gone.
type record struct {
	Lab   string           `json:"lab"`
	Bin   string           `json:"bin"`
	Nodes []TestbedNode    `json:"nodes"`
	Procs map[string]ident `json:"procs"`
	// Kept: its program is done, and it was told to leave all this running.
	Kept bool `json:"kept,omitempty"`
}

// ident is a process that cannot be mistaken for a later one of the same number.
type ident struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks after boot
}

// identify reads who pid is now.
func identify(pid int) (ident, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ident{}, false
	}
	fields := strings.Fields(string(b)[strings.LastIndexByte(string(b), ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" {
		return ident{}, false
	}
	return ident{pid, fields[19]}, true
}

func (i ident) alive() bool {
	now, ok := identify(i.PID)
	return ok && now == i
}

const recordFile = "stage.json"

// firstFiles are what a run writes into its folder before its record.
var firstFiles = []string{"bin", "examples", recordFile + ".new"}

// save writes down what runs; the caller holds s.mu.
func (s *Testbed) save() error {
	r := record{Lab: s.spec.Topology.Name, Bin: s.spec.Bin, Nodes: s.spec.Nodes, Procs: map[string]ident{}, Kept: s.kept}
	for name, p := range s.procs {
		if id, ok := identify(p.pid()); ok {
			r.Procs[name] = id
		}
	}
	tmp := filepath.Join(s.spec.Dir, recordFile+".new")
	if err := writeJSON(tmp, r); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(s.spec.Dir, recordFile))
}

// keep notes that this testbed is to run on without its program.
func (s *Testbed) keep() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = true
	return errors.Join(s.save(), s.Lab.Unbind())
}

// kept tells whether a testbed that was to be kept runs in dir.
func kept(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return false
	}
	var r record
	if json.Unmarshal(b, &r) != nil || !r.Kept {
		return false
	}
	for _, id := range r.Procs {
		if id.alive() {
			return true
		}
	}
	return false
}

// alone keeps every other run out of the folder while one is at work there.
func alone(dir string) (release func(), err error) {
	release, err = filelock.Try(filepath.Clean(dir) + ".lock")
	var held *filelock.Held
	if errors.As(err, &held) {
		return nil, &onpath.Error{Code: onpath.CodeConflict, Message: fmt.Sprintf("a demonstration is at work in %s (process %d)", dir, held.PID),
			Remedy: "wait for it, or end it with Ctrl-C in its terminal", Cause: err}
	}
	return release, err
}

// Down removes what an earlier run with the same directory left running, also
// one that was killed. Nothing there is no error, and is said.
func Down(ctx context.Context, dir string, out io.Writer) error {
	if dir == "" {
		dir = DefaultDir
	}
	release, err := alone(dir)
	if err != nil {
		return err
	}
	defer release()
	return removeLeftover(ctx, dir, out)
}

func removeLeftover(ctx context.Context, dir string, out io.Writer) error {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return clearFolder(dir, out)
	}
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, recordFile), err)
	}
	return r.down(ctx, dir, out)
}

// clearFolder removes a folder without a record: what a run that was killed at its
// very beginning wrote, and nothing else that somebody may keep there.
func clearFolder(dir string, out io.Writer) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		_, err := fmt.Fprintf(out, "nothing of a demonstration is in %s\n", dir)
		return err
	}
	if err != nil {
		return &onpath.Error{Code: onpath.CodeInvalid, Message: err.Error(), Remedy: "name a folder with --dir", Cause: err}
	}
	for _, e := range entries {
		if dir != DefaultDir && !slices.Contains(firstFiles, e.Name()) {
			return &onpath.Error{Code: onpath.CodeInvalid, Message: fmt.Sprintf("%s is no demonstration's folder: it has %s, and no %s", dir, e.Name(), recordFile),
				Remedy: "name a folder that is empty or not there with --dir, since a demonstration removes it"}
		}
	}
	return os.RemoveAll(dir)
}

func (r record) down(ctx context.Context, dir string, out io.Writer) error {
	var errs []error
	for name, id := range r.Procs {
		if id.alive() {
			fmt.Fprintf(out, "ending %s (pid %d)\n", name, id.PID)
			end(id)
		}
	}
	l, err := lab.Open("", r.Lab)
	if err == nil {
		for _, n := range r.Nodes {
			fmt.Fprintf(out, "node off on %s\n", n.Name)
			if text, err := l.Exec(ctx, n.Host, r.Bin, "node", "off", "--name", n.Name); err != nil {
				errs = append(errs, fmt.Errorf("node off on %s: %w: %s", n.Host, err, text))
			}
		}
		fmt.Fprintf(out, "removing network %s\n", r.Lab)
		errs = append(errs, l.Down(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// end asks a process to end, and makes it after five seconds.
func end(id ident) {
	_ = syscall.Kill(id.PID, syscall.SIGTERM)
	for range 500 {
		if !id.alive() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	_ = syscall.Kill(id.PID, syscall.SIGKILL)
}
