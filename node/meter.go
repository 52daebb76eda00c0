package node

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
	"github.com/onpath/onpath/node/wiring"
)

// meterEvery is how often what instances have used is read and kept.
const meterEvery = 15 * time.Second

// meters are what instances have used. Where their counts come from, control groups and
// vports, begins anew with a process or a machine; the meters go on.
type meters struct {
	file string

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

// load reads what an earlier agent kept.
func (m *meters) load() error {
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
func (m *meters) save(synced bool) error {
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

func (a *Agent) meterLoop(ctx context.Context) {
	for a.part.Clock.Sleep(ctx, meterEvery) == nil {
		a.readMeters(ctx, nil)
	}
}

// metered is an instance whose counts are read.
type metered struct {
	in   *instance
	plan onpath.InstancePlan
	proc onpath.Process
	ids  []onpath.VportID
}

// readMeters reads the counts of one instance, or of all where nil, and keeps them.
func (a *Agent) readMeters(ctx context.Context, only *instance) {
	a.mu.Lock()
	known := a.plan != nil
	var list []metered
	there := map[string]bool{}
	for _, in := range a.instances {
		if isLease(&in.plan) {
			continue // nobody is billed for it, and all publishers' instances have one UID
		}
		there[in.plan.UID] = true
		if only == nil || in == only {
			list = append(list, metered{in, in.plan, in.proc, wiring.Of(in.id, in.plan).Vports()})
		}
	}
	a.mu.Unlock()
	var counters *onpath.Counters
	if len(list) > 0 {
		var err error
		if counters, err = a.opt.Datapath.Counters(ctx); err != nil {
			return // what is counted there is counted next time
		}
	}
	for _, x := range list {
		a.noteSent(x, counters)
	}
	m := &a.meters
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range list {
		a.readMeter(ctx, x, counters)
	}
	for uid, x := range m.all {
		x.Gone = x.Gone || known && !there[uid]
	}
	if err := m.save(false); err != nil {
		a.part.Log.Warn("what instances have used cannot be kept; it is tried on", "err", err)
	}
}

func (a *Agent) readMeter(ctx context.Context, x metered, c *onpath.Counters) {
	m := a.meters.all[x.plan.UID]
	if m == nil {
		m = &meter{Meter: onpath.Meter{UID: x.plan.UID, Tenant: x.plan.Tenant, Instance: x.plan.Name, Deployment: x.plan.Deployment,
			Began: a.part.Clock.Now().UTC().Round(0)}}
		a.meters.all[m.UID] = m
	}
	m.Reservation, m.Gone = x.plan.Reservation, false
	cpu, bytes, counted := m.ReadCPU, uint64(0), false
	if x.proc != nil {
		if u, err := x.proc.Usage(ctx); err == nil {
			cpu = u.CPU
		}
	}
	for _, id := range x.ids {
		if v, ok := c.Vports[id]; ok {
			bytes, counted = bytes+v.Out.Bytes, true
		}
	}
	if !counted { // its vports are not in force
		bytes = m.ReadBytes
	}
	m.read(cpu, bytes)
}

// Meters are what instances have used, by UID. Those that are billed and gone are
// forgotten. No answer is given that a power cut takes back: the server would bill what it
// says a second time.
func (a *Agent) Meters(ctx context.Context, r onpath.MeterRequest) ([]onpath.Meter, error) {
	m := &a.meters
	m.mu.Lock()
	for _, uid := range r.Billed {
		if x := m.all[uid]; x != nil && x.Gone {
			delete(m.all, uid)
		}
	}
	m.mu.Unlock()
	a.readMeters(ctx, nil)
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
