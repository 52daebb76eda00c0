package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/filelock"
)

// DefaultStateDir is where labs are kept. What is in it does not survive a
// reboot, as the labs do not.
const DefaultStateDir = "/run/onpath/lab"

// Phases of a lab.
const (
	PhaseStarting = "starting"
	PhaseUp       = "up"
	PhaseStopping = "stopping"
)

// state is what stands in a lab's state.json. It is written before anything
// that it names is made, and removed after all of it is gone.
type state struct {
	Name      string     `json:"name"`
	Phase     string     `json:"phase"`
	Owner     identity   `json:"owner"` // who is starting or stopping it
	Created   time.Time  `json:"created"`
	Emulation string     `json:"emulation"` // of shaped links
	IPNetNS   bool       `json:"ipNetns"`
	Bound     bool       `json:"bound,omitempty"` // to its owner
	Topology  *Topology  `json:"topology"`
	Processes []*Process `json:"processes"`
}

// identity is a process that cannot be mistaken for a later one of the same
// number.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
}

// Process is one that the lab started: a command of a host, or the one that
// carries frames.
type Process struct {
	identity
	Host string   `json:"host,omitempty"` // empty: belongs to the lab
	Name string   `json:"name"`
	Run  []string `json:"run"`
	Log  string   `json:"log"` // file with its output
}

// identify reads who pid is now.
func identify(pid int) (identity, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return identity{}, err
	}
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return identity{}, fs.ErrNotExist
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return identity{pid, start}, err
}

// alive reports whether the process still runs; a zombie does not.
func (i identity) alive() bool {
	now, err := identify(i.PID)
	return err == nil && now == i
}

// directory is a lab's place in the state directory.
type directory string

// directoryOf has no symbolic links in it, as mount tables have none.
func directoryOf(stateDir, name string) directory {
	if stateDir == "" {
		stateDir = DefaultStateDir
	}
	if abs, err := filepath.Abs(stateDir); err == nil {
		stateDir = abs
	}
	if real, err := filepath.EvalSymlinks(stateDir); err == nil {
		stateDir = real
	}
	return directory(filepath.Join(stateDir, name))
}

func (d directory) stateFile() string      { return filepath.Join(string(d), "state.json") }
func (d directory) namespaces() string     { return filepath.Join(string(d), "ns") }
func (d directory) net(node string) string { return filepath.Join(d.namespaces(), node+".net") }
func (d directory) mnt(host string) string { return filepath.Join(d.namespaces(), host+".mnt") }
func (d directory) logs() string           { return filepath.Join(string(d), "log") }
func (d directory) counters() string       { return filepath.Join(string(d), "links.counters") }
func (d directory) linksFile() string      { return filepath.Join(string(d), "links.json") }
func (d directory) ipNetNS(host string) string {
	return "/run/netns/" + filepath.Base(string(d)) + "-" + host
}

// wire is the namespace in which switches and the middle of shaped links are.
// No host can have this name.
const wire = "+wire"

// load reads a lab's state; a missing one is CodeNotFound.
func (d directory) load() (*state, error) {
	b, err := os.ReadFile(d.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &onpath.Error{Code: onpath.CodeNotFound,
			Message: fmt.Sprintf("there is no lab %s in %s", filepath.Base(string(d)), filepath.Dir(string(d))),
			Remedy:  "onpath lab status lists those that are up, onpath lab up FILE starts one"}
	}
	if err != nil {
		return nil, fmt.Errorf("lab: state: %w", err)
	}
	s := &state{}
	if err := json.Unmarshal(b, s); err != nil || s.Name != filepath.Base(string(d)) || s.Topology == nil {
		return nil, &onpath.Error{Code: onpath.CodeInternal, Place: d.stateFile(), Message: "is not a lab's state", Remedy: "see whether what is in the directory is still needed, and remove it by hand", Cause: err}
	}
	return s, nil
}

// save writes the state so that a crash leaves the old or the new one.
func (d directory) save(s *state) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("lab: state: %w", err)
	}
	temporary := d.stateFile() + ".new"
	if err := os.WriteFile(temporary, b, 0o600); err != nil {
		return fmt.Errorf("lab: state: %w", err)
	}
	if err := os.Rename(temporary, d.stateFile()); err != nil {
		return fmt.Errorf("lab: state: %w", err)
	}
	return nil
}

// lock keeps others from starting or stopping the lab. It is refused at once
// when somebody else holds it. The default state directory goes with its last lab.
func (d directory) lock() (unlock func(), err error) {
	release, err := filelock.Try(string(d) + ".lock")
	var held *filelock.Held
	if errors.As(err, &held) {
		return nil, &onpath.Error{Code: onpath.CodeConflict, Message: fmt.Sprintf("lab %s is being started or stopped by process %d", filepath.Base(string(d)), held.PID), Remedy: "wait for it", Cause: err}
	}
	if err != nil {
		return nil, err
	}
	return func() {
		release()
		if base := filepath.Dir(string(d)); base == DefaultStateDir {
			os.Remove(base) // if that was the last lab
		}
	}, nil
}

// Summary is one lab of List.
type Summary struct {
	Name    string    `json:"name"`
	Phase   string    `json:"phase"`
	Left    bool      `json:"left"` // by a program that has ended
	Created time.Time `json:"created"`
	Hosts   int       `json:"hosts"`
	Links   int       `json:"links"`
}

// List names the labs in a state directory ("": the default), also those that
// an earlier crash left.
func List(stateDir string) ([]Summary, error) {
	if stateDir == "" {
		stateDir = DefaultStateDir
	}
	entries, err := os.ReadDir(stateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab: list: %w", err)
	}
	var out []Summary
	for _, e := range entries {
		s, err := directoryOf(stateDir, e.Name()).load()
		if !e.IsDir() || err != nil {
			continue
		}
		out = append(out, Summary{s.Name, s.phase(), s.left(), s.Created, len(s.Topology.Hosts), len(s.Topology.Links)})
	}
	slices.SortFunc(out, func(a, b Summary) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// phase is the phase, and that a program left it so if one did.
func (s *state) phase() string {
	switch {
	case !s.left():
		return s.Phase
	case s.Phase == PhaseUp:
		return s.Phase + " (left by a program that has ended)"
	}
	return s.Phase + " (interrupted)"
}

// left reports whether the program is gone that was starting or stopping the lab, or to
// which it is bound.
func (s *state) left() bool {
	return (s.Phase != PhaseUp || s.Bound) && !s.Owner.alive()
}
