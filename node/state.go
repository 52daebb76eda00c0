package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
)

// savedPlan is StateDir/plan.json: what was asked of the node, and, while that
// is not in force yet, what was in force before it.
type savedPlan struct {
	Node    string           `json:"node"`
	Wanted  *onpath.NodePlan `json:"wanted"`
	InForce *onpath.NodePlan `json:"inForce,omitempty"`
	Acked   bool             `json:"acked"` // Wanted is in force
}

// record is StateDir/instances/ID.json, with ID.log beside it: what the run
// before the present one wrote. It is written before anything of the
// instance is made and removed after all of it is gone, so that nothing is ever
// left without a record.
type record struct {
	ID     string              `json:"id"`
	Tenant string              `json:"tenant"`
	Name   string              `json:"name"`
	Kind   onpath.FunctionKind `json:"kind"`
	Vports []onpath.VportID    `json:"vports"`
	// Wiring is a hash of how the interfaces were set up; empty: not finished.
	Wiring string `json:"wiring,omitempty"`
	// Ready is what the next agent assumes of a process that still runs.
	Ready bool `json:"ready"`
	// Asleep: it takes packets and nothing of it runs.
	Asleep bool `json:"asleep,omitempty"`
	// Boot is the start of the machine since which all this is so.
	Boot string `json:"boot,omitempty"`
	// Started: a process was started and not yet cleared away.
	Started  bool `json:"started,omitempty"`
	Restarts int  `json:"restarts,omitempty"`
}

// state is the agent's folder.
type state struct{ dir string }

func (s state) planFile() string            { return filepath.Join(s.dir, "plan.json") }
func (s state) meterFile() string           { return filepath.Join(s.dir, "meters.json") }
func (s state) recordDir() string           { return filepath.Join(s.dir, "instances") }
func (s state) recordFile(id string) string { return filepath.Join(s.recordDir(), id+".json") }
func (s state) lastLog(id string) string    { return filepath.Join(s.recordDir(), id+".log") }
func (s state) netnsDir() string            { return filepath.Join(s.dir, "netns") }
func (s state) netns(id string) string      { return filepath.Join(s.netnsDir(), id) }

// notifyDir has what functions told and the server has not fetched.
func (s state) notifyDir() string { return filepath.Join(s.dir, "notifications") }

// identityDir is the certificate with which the node joined.
func (s state) identityDir() string { return filepath.Join(s.dir, "identity") }

func (s state) init() error {
	for _, d := range []string{s.dir, s.recordDir(), s.netnsDir()} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return fmt.Errorf("create the agent's state folder: %w", err)
		}
	}
	// Root of a tenant's container, nobody here, passes to its files further down.
	if err := os.Chmod(s.dir, 0o711); err != nil {
		return fmt.Errorf("create the agent's state folder: %w", err)
	}
	return nil
}

// lock keeps a second agent, and Off, out of the folder while an agent runs, and
// removes what a killed one had half written.
func (s state) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the agent's state folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &onpath.Error{
			Code: onpath.CodeConflict, Message: "an agent runs with the state folder " + s.dir,
			Remedy: "stop it, or give this one a folder of its own", Cause: err,
		}
	}
	if err := wholefile.Clean(s.dir, s.recordDir(), s.faultDir(), s.identityDir()); err != nil {
		f.Close()
		return nil, fmt.Errorf("clean the agent's state folder: %w", err)
	}
	return func() { f.Close() }, nil
}

// Hold keeps everybody else's agent out of a state folder, before anything that
// agents share on the machine is touched, until it is released. An agent that
// runs within has Options.Held.
func Hold(dir string) (release func(), err error) {
	s := state{dir}
	if err := s.init(); err != nil {
		return nil, err
	}
	return s.lock()
}

// loadPlan gives nil if there is none.
func (s state) loadPlan() (*savedPlan, error) {
	data, err := os.ReadFile(s.planFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the saved plan: %w", err)
	}
	var p savedPlan
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("read the saved plan %s: %w", s.planFile(), err)
	}
	if p.Wanted == nil {
		return nil, fmt.Errorf("read the saved plan %s: it names no plan", s.planFile())
	}
	return &p, nil
}

// PlannedUnderlay is the underlay address by the plan that is kept in a state folder,
// if one is.
func PlannedUnderlay(dir string) netip.Addr {
	p, err := state{dir}.loadPlan()
	if err != nil || p == nil {
		return netip.Addr{}
	}
	return p.Wanted.Datapath.Underlay.Address
}

func (s state) savePlan(p savedPlan) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("save the plan: %w", err)
	}
	if err := wholefile.Write(s.planFile(), data, 0o600); err != nil {
		return fmt.Errorf("save the plan: %w", err)
	}
	return nil
}

func (s state) saveRecord(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save the record of instance %s: %w", r.ID, err)
	}
	// Not synced: what a power cut loses here, it loses in the kernel too.
	if err := wholefile.WriteLightly(s.recordFile(r.ID), data, 0o600); err != nil {
		return fmt.Errorf("save the record of instance %s: %w", r.ID, err)
	}
	return nil
}

// records reads all records; an unreadable one still names its instance.
func (s state) records() (map[string]record, error) {
	files, err := filepath.Glob(filepath.Join(s.recordDir(), "*.json"))
	if err != nil {
		return nil, fmt.Errorf("list the records of instances: %w", err)
	}
	out := make(map[string]record, len(files))
	for _, f := range files {
		id := strings.TrimSuffix(filepath.Base(f), ".json")
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("read the record of instance %s: %w", id, err)
		}
		var r record
		if json.Unmarshal(data, &r) != nil {
			r = record{}
		}
		r.ID = id
		out[id] = r
	}
	return out, nil
}

func (s state) removeRecord(id string) error {
	if err := os.Remove(s.lastLog(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the last log of instance %s: %w", id, err)
	}
	if err := os.Remove(s.recordFile(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of instance %s: %w", id, err)
	}
	return nil
}

// instanceID is unique on the machine, and readable: tenant, name and a hash.
// It is a container's id (at most 76 letters in containerd) and a file name.
func instanceID(node string, p onpath.InstancePlan) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{node, p.Tenant, p.Name, p.UID}, "\x00")))
	words := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(p.Tenant+"-"+p.Name))
	if len(words) > 48 {
		words = words[:48]
	}
	return strings.Trim(words, "-") + "-" + hex.EncodeToString(sum[:5])
}

// hashOf is a short hash of v's JSON.
func hashOf(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic("node: hash: " + err.Error()) // only plain structs come here
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
