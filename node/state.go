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

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/node/base"
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

func planFile(d base.Dir) string  { return d.File("plan.json") }
func meterFile(d base.Dir) string { return d.File("meters.json") }

func recordFile(d base.Dir, id string) string { return filepath.Join(d.Records(), id+".json") }
func lastLog(d base.Dir, id string) string    { return filepath.Join(d.Records(), id+".log") }

// Hold keeps everybody else's agent out of a state folder, before anything that
// agents share on the machine is touched, until it is released. An agent that
// runs within has Options.Held.
func Hold(dir string) (release func(), err error) {
	d := base.Dir(dir)
	if err := d.Init(); err != nil {
		return nil, err
	}
	return d.Lock()
}

// loadPlan gives nil if there is none.
func loadPlan(d base.Dir) (*savedPlan, error) {
	data, err := os.ReadFile(planFile(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the saved plan: %w", err)
	}
	var p savedPlan
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("read the saved plan %s: %w", planFile(d), err)
	}
	if p.Wanted == nil {
		return nil, fmt.Errorf("read the saved plan %s: it names no plan", planFile(d))
	}
	return &p, nil
}

// PlannedUnderlay is the underlay address by the plan that is kept in a state folder,
// if one is.
func PlannedUnderlay(dir string) netip.Addr {
	p, err := loadPlan(base.Dir(dir))
	if err != nil || p == nil {
		return netip.Addr{}
	}
	return p.Wanted.Datapath.Underlay.Address
}

func savePlan(d base.Dir, p savedPlan) error {
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("save the plan: %w", err)
	}
	if err := wholefile.Write(planFile(d), data, 0o600); err != nil {
		return fmt.Errorf("save the plan: %w", err)
	}
	return nil
}

func saveRecord(d base.Dir, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("save the record of instance %s: %w", r.ID, err)
	}
	// Not synced: what a power cut loses here, it loses in the kernel too.
	if err := wholefile.WriteLightly(recordFile(d, r.ID), data, 0o600); err != nil {
		return fmt.Errorf("save the record of instance %s: %w", r.ID, err)
	}
	return nil
}

// loadRecords reads all records; an unreadable one still names its instance.
func loadRecords(d base.Dir) (map[string]record, error) {
	files, err := filepath.Glob(filepath.Join(d.Records(), "*.json"))
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

func removeRecord(d base.Dir, id string) error {
	if err := os.Remove(lastLog(d, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the last log of instance %s: %w", id, err)
	}
	if err := os.Remove(recordFile(d, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
