package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/traffic"
)

// The cases and metrics of flows.
const (
	flowsNewCase    = "one packet of each flow"
	flowsFullCase   = "one packet of each flow, table full"
	flowsKeptCase   = "10^4 flows through one routed instance"
	metricFlowRate  = "new flows"
	metricHopMemory = "memory of a hop decision"
	flowsKept       = 10_000
	flowsHops       = 2 // edge to instance, instance to edge
	unitFlows       = "flows/s"
	unitBytes       = "bytes"
)

func flowsBenchmark() Benchmark {
	return Benchmark{
		Name: "flows", rounds: 6, cost: cost{20 * time.Second, 9 * time.Second},
		Question: "how many new flows a second can one core learn, and what does a known one cost?",
		Targets: []Target{
			{Text: "≥ 300,000 new flows/s on one core", Case: flowsNewCase, Contestant: "onpath-tc", Metric: metricFlowRate, Min: 300_000,
				Why: "A new flow is three entries: at the edge, and at the instance one for answers and one for what comes out. Each is found absent and inserted in the kernel's hash table, and each time its bucket lies in no cache: lookup_nulls_elem_raw below is waiting for memory. A socket buffer, source and sink take another microsecond, as the rate of linux shows."},
			{Text: "≥ 1.5 × Open vSwitch in user space", Case: flowsNewCase, Contestant: "onpath-tc", Metric: metricFlowRate, Of: "ovs", Min: 1.5},
			{Text: "≤ 320 bytes per established hop decision, both directions", Case: flowsKeptCase, Contestant: "onpath-tc", Metric: metricHopMemory, Max: 320},
		},
		run: runFlows,
	}
}

func runFlows(ctx context.Context, r *Run) (err error) {
	for first := 0; first < r.Rounds(); first += roomRounds {
		if err := r.newFlows(ctx, first, min(roomRounds, r.Rounds()-first)); err != nil {
			return err
		}
	}
	if err := r.fullTable(ctx); err != nil {
		return err
	}
	lines, err := r.routers(ctx, []router{onpathHop("onpath-tc", onTC)})
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	for _, c := range lines {
		r.say("memory, %s", c.name)
		bytes, err := c.hopMemory(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		r.sample(flowsKeptCase, c.name, metricHopMemory, unitBytes, 0, bytes)
	}
	return nil
}

// Rounds of new flows that the table of flows has room for; then all is made anew.
const (
	roomRounds  = 3
	roomEntries = 2 << 20
)

// newFlows measures first packets: classified, an instance chosen, entries
// written for both directions, delivered. The instance is the sink.
func (r *Run) newFlows(ctx context.Context, first, rounds int) (err error) {
	lines, err := r.routers(ctx, []router{linuxRouter(), conntrackRouter(), ovsRouter("ovs", ovsTrack), ovsRouter("ovs-hash", ovsChoose),
		onpathToSink("onpath-tc", pick(r, roomEntries, 1<<17), onTC)})
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	fresh := freshFlows{}
	err = abba(ctx, rounds, lines, func(round int, c built) error {
		r.say("new flows, round %d of %d, %s", first+round+1, r.Rounds(), c.name)
		return r.flowsTrial(ctx, flowsNewCase, first+round, c, fresh)
	})
	if err != nil || first > 0 {
		return err
	}
	return r.profileMissed(ctx, func(kase, contestant string) (func() error, error) {
		i := slices.IndexFunc(lines, func(c built) bool { return c.name == contestant })
		if i < 0 || kase != flowsNewCase {
			return nil, nil
		}
		return func() error {
			_, err := lines[i].try(ctx, r.newFlowsJob(lines[i], fresh))
			return err
		}, nil
	})
}

// fullTable measures first packets when each new flow takes the place of an older
// one that was never used again: a flood.
func (r *Run) fullTable(ctx context.Context) (err error) {
	lines, err := r.routers(ctx, []router{onpathToSink("onpath-tc", 1<<16, onTC)})
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	fresh := freshFlows{}
	return abba(ctx, r.Rounds(), lines, func(round int, c built) error {
		r.say("new flows in a full table, round %d of %d, %s", round+1, r.Rounds(), c.name)
		if round == 0 { // fills it
			if _, err := c.try(ctx, r.newFlowsJob(c, fresh)); err != nil {
				return err
			}
		}
		return r.flowsTrial(ctx, flowsFullCase, round, c, fresh)
	})
}

// freshFlows are the numbers from which on nobody has seen a contestant's flows.
type freshFlows map[string]int

// newFlowsJob sends one packet of each of many flows.
func (r *Run) newFlowsJob(c built, fresh freshFlows) traffic.Job {
	flows := flowsOf(1 << 26)
	flows.First = fresh[c.name]
	fresh[c.name] += 1 << 22 // far more than are sent
	return traffic.Job{Flows: flows, Order: traffic.Sequential, Time: pick(r, 300*time.Millisecond, 100*time.Millisecond)}
}

func (r *Run) flowsTrial(ctx context.Context, kase string, round int, c built, fresh freshFlows) error {
	t, err := c.maximum(ctx, r.newFlowsJob(c, fresh))
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	r.sample(kase, c.name, metricFlowRate, unitFlows, round, t.rate())
	r.sample(kase, c.name, MetricCPU, "ns/packet", round, t.cpu())
	return nil
}

// onpathToSink is a chain whose only instance is a sink, so that nothing but the
// decision is measured. flows is the size of the flow table, 0 the default.
func onpathToSink(name string, flows int, fast onpath.Fast) router {
	return onpathRouter(name, flows, fast, throughHops(1, netServers.String()), func(l *line, list []instance) error {
		s, err := traffic.NewSink(list[0].ns, "eth0")
		if err != nil {
			return err
		}
		l.After(s.Close)
		l.far = s
		return nil
	})
}

// hopMemory is what the kernel holds for one hop of an established flow, both
// directions: entries per flow and hop, times what an entry takes in its map.
func (l *line) hopMemory(ctx context.Context) (float64, error) {
	if err := l.establish(ctx, flowsOf(flowsKept)); err != nil {
		return 0, err
	}
	entries := 0
	err := l.datapath.Flows(ctx, onpath.FlowFilter{}, func(onpath.FlowEntry) bool {
		entries++
		return true
	})
	if err != nil {
		return 0, err
	}
	if entries < flowsKept {
		return 0, fmt.Errorf("of %d flows there are only %d entries", flowsKept, entries)
	}
	each, err := l.entrySize()
	return each * float64(entries) / flowsKept / flowsHops, err
}

// entrySize is the memory of one entry of the table of established flows, by the
// kernel's own account of the map.
func (l *line) entrySize() (float64, error) {
	files, err := filepath.Glob(filepath.Join(pinPath, filepath.Base(l.Dir()), "flows*"))
	if err != nil || len(files) != 1 {
		return 0, fmt.Errorf("the data path has %d tables of flows (%v)", len(files), err)
	}
	m, err := ebpf.LoadPinnedMap(files[0], nil)
	if err != nil {
		return 0, fmt.Errorf("open the table of flows: %w", err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return 0, err
	}
	memory, ok := info.Memlock()
	if !ok {
		return 0, errors.New("the kernel does not tell what a map takes")
	}
	return float64(memory) / float64(info.MaxEntries), nil
}
