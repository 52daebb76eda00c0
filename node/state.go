package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"

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

func planFile(d base.Dir) string { return d.File("plan.json") }

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
	for _, plan := range []*onpath.NodePlan{p.Wanted, p.InForce} {
		if plan == nil {
			continue
		}
		if err := plan.Expand(); err != nil {
			return nil, fmt.Errorf("read the saved plan %s: %w", planFile(d), err)
		}
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

// compactAbove is how much shorter a compact plan must be, in bytes, for the file to have it so.
// Older versions, to which a node may go back, do not read such, and take no plan so large.
const compactAbove = 64 << 20

func savePlan(d base.Dir, p savedPlan) error {
	for _, plan := range []**onpath.NodePlan{&p.Wanted, &p.InForce} {
		if *plan == nil {
			continue
		}
		if compact, saved := (*plan).Compact(); saved > compactAbove {
			*plan = compact
		}
	}
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("save the plan: %w", err)
	}
	if err := wholefile.Write(planFile(d), data, 0o600); err != nil {
		return fmt.Errorf("save the plan: %w", err)
	}
	return nil
}
