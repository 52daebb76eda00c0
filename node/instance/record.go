package instance

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/node/base"
)

// Labels that the agent gives to what it starts, in onpath.RunSpec.Labels; they
// are how a restarted agent knows its own.
const (
	LabelNode       = "onpath.node"
	LabelState      = "onpath.state" // the agent's StateDir
	LabelTenant     = "onpath.tenant"
	LabelDeployment = "onpath.deployment"
	LabelInstance   = "onpath.instance"
	LabelUID        = "onpath.uid"
	LabelShape      = "onpath.shape" // hash of what cannot change while it runs
)

// Record is StateDir/instances/ID.json, with ID.log beside it: what the run
// before the present one wrote. It is written before anything of the
// instance is made and removed after all of it is gone, so that nothing is ever
// left without a record.
type Record struct {
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

func recordFile(d base.Dir, id string) string { return filepath.Join(d.Records(), id+".json") }
func lastLog(d base.Dir, id string) string    { return filepath.Join(d.Records(), id+".log") }

func saveRecord(d base.Dir, r Record) error {
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

// Records reads all records; an unreadable one still names its instance.
func Records(d base.Dir) (map[string]Record, error) {
	files, err := filepath.Glob(filepath.Join(d.Records(), "*.json"))
	if err != nil {
		return nil, fmt.Errorf("list the records of instances: %w", err)
	}
	out := make(map[string]Record, len(files))
	for _, f := range files {
		id := strings.TrimSuffix(filepath.Base(f), ".json")
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("read the record of instance %s: %w", id, err)
		}
		var r Record
		if json.Unmarshal(data, &r) != nil {
			r = Record{}
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

// ID is unique on the machine, and readable: tenant, name and a hash.
// It is a container's id (at most 76 letters in containerd) and a file name.
func ID(node string, p onpath.InstancePlan) string {
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
