// Package meter knows what instances have used, what they send that they may not, and how
// many flows they and ended paths have left. It reads what it is told to.
package meter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/wholefile"
	"github.com/onpath/onpath/node/base"
)

// Meters are what instances have used. Where their counts come from, control groups and
// vports, begins anew with a process or a machine; the meters go on.
type Meters struct {
	part  *base.Part
	file  string
	sends senders

	mu     sync.Mutex
	all    map[string]*meter // by UID
	kept   []byte            // as it is in the file
	synced bool              // and after a power cut
}

// meter is an instance's, with the counts as they were read last.
type meter struct {
	onpath.Meter
	ReadCPU   time.Duration `json:"readCPU"`
	ReadBytes uint64        `json:"readBytes"`
}

// read takes counts up. One that is lower than before has begun anew.
func (m *meter) read(cpu time.Duration, bytes uint64) {
	if cpu < m.ReadCPU {
		m.ReadCPU = 0
	}
	if bytes < m.ReadBytes {
		m.ReadBytes = 0
	}
	m.CPU, m.Bytes = m.CPU+cpu-m.ReadCPU, m.Bytes+bytes-m.ReadBytes
	m.ReadCPU, m.ReadBytes = cpu, bytes
}

// Load reads what an earlier agent kept.
func (m *Meters) Load() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = map[string]*meter{}
	data, err := os.ReadFile(m.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &m.all)
	}
	m.kept = data
	return err
}

// save keeps the meters, also over a power cut if they must be synced. Callers hold mu.
func (m *Meters) save(synced bool) error {
	data, err := json.Marshal(m.all)
	same := string(data) == string(m.kept) && (m.synced || !synced)
	if err != nil || same || len(m.all) == 0 && m.kept == nil {
		return err
	}
	write := wholefile.WriteLightly
	if synced {
		write = wholefile.Write
	}
	if err := write(m.file, data, 0o600); err != nil {
		return err
	}
	m.kept, m.synced = data, synced
	return nil
}

// New makes meters; Load reads what is kept.
func New(p *base.Part) *Meters {
	return &Meters{part: p, file: File(p.Dir), all: map[string]*meter{}, sends: senders{of: map[uint64]*sending{}}}
}

// Instance is an instance whose counts are read.
type Instance struct {
	Number  uint64 // no two instances have one
	Plan    onpath.InstancePlan
	Process onpath.Process // nil: it does not run
	Vports  []onpath.VportID
}

// Readings are the instances that are read, and all that are there.
type Readings struct {
	List  []Instance
	There map[string]bool // by UID; nil: that is not known
}

// Read reads the counts of instances, and keeps them.
func (m *Meters) Read(ctx context.Context, r Readings) {
	var counters *onpath.Counters
	if len(r.List) > 0 {
		var err error
		if counters, err = m.part.Datapath.Counters(ctx); err != nil {
			return // what is counted there is counted next time
		}
	}
	for _, x := range r.List {
		m.sends.note(m.part, x, counters)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range r.List {
		m.readMeter(ctx, x, counters)
	}
	for uid, x := range m.all {
		x.Gone = x.Gone || r.There != nil && !r.There[uid]
	}
	if err := m.save(false); err != nil {
		m.part.Log.Warn("what instances have used cannot be kept; it is tried on", "err", err)
	}
}

// readMeter reads one. Callers hold mu.
func (m *Meters) readMeter(ctx context.Context, x Instance, c *onpath.Counters) {
	own := m.all[x.Plan.UID]
	if own == nil {
		own = &meter{Meter: onpath.Meter{UID: x.Plan.UID, Tenant: x.Plan.Tenant, Instance: x.Plan.Name, Deployment: x.Plan.Deployment,
			Began: m.part.Clock.Now().UTC().Round(0)}}
		m.all[own.UID] = own
	}
	own.Reservation, own.Gone = x.Plan.Reservation, false
	cpu, bytes, counted := own.ReadCPU, uint64(0), false
	if x.Process != nil {
		if u, err := x.Process.Usage(ctx); err == nil {
			cpu = u.CPU
		}
	}
	for _, id := range x.Vports {
		if v, ok := c.Vports[id]; ok {
			bytes, counted = bytes+v.Out.Bytes, true
		}
	}
	if !counted { // its vports are not in force
		bytes = own.ReadBytes
	}
	own.read(cpu, bytes)
}

// ForgetBilled lets go of those that are billed and gone.
func (m *Meters) ForgetBilled(uids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range uids {
		if x := m.all[uid]; x != nil && x.Gone {
			delete(m.all, uid)
		}
	}
}

// List are what instances have used, by UID. Nothing is told that a power cut takes back:
// the server would bill what it says a second time.
func (m *Meters) List() ([]onpath.Meter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.save(true); err != nil {
		return nil, fmt.Errorf("keep what instances have used: %w", err)
	}
	out := make([]onpath.Meter, 0, len(m.all))
	for _, x := range m.all {
		out = append(out, x.Meter)
	}
	slices.SortFunc(out, func(x, y onpath.Meter) int { return strings.Compare(x.UID, y.UID) })
	return out, nil
}

// File has what instances have used.
func File(d base.Dir) string { return d.File("meters.json") }
