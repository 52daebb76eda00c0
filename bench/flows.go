package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/traffic"
)

// The cases and metrics of flows.
const (
	flowsNewCase     = "one packet of each flow"
	flowsKeptCase    = "10^4 flows through one routed instance"
	metricFlowRate   = "new flows"
	metricHopMemory  = "memory of a hop decision"
	flowsKept        = 10_000
	flowsHops        = 2 // edge to instance, instance to edge
	unitFlows        = "flows/s"
	unitBytes        = "bytes"
	flowsSinkElement = onpath.VportID(17)
)

func flowsBenchmark() Benchmark {
	return Benchmark{
		Name: "flows", rounds: 6,
		Question: "how many new flows a second can one core learn, and what does a known one cost?",
		Targets: []Target{
			{Text: "≥ 300,000 new flows/s on one core", Case: flowsNewCase, Contestant: "onpath-tc", Metric: metricFlowRate, Min: 300_000},
			{Text: "≥ 5 × Open vSwitch in user space", Case: flowsNewCase, Contestant: "onpath-tc", Metric: metricFlowRate, Of: "ovs", Min: 5},
			{Text: "≤ 320 bytes per established hop decision, both directions", Case: flowsKeptCase, Contestant: "onpath-tc", Metric: metricHopMemory, Max: 320},
		},
		run: runFlows,
	}
}

func runFlows(ctx context.Context, r *Run) (err error) {
	if err := r.newFlows(ctx); err != nil {
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

// newFlows measures first packets: classified, an instance chosen, entries
// written for both directions, delivered. The instance is the sink.
func (r *Run) newFlows(ctx context.Context) (err error) {
	lines, err := r.routers(ctx, []router{linuxRouter(), onpathToSink("onpath-tc", 0, onTC), onpathToSink("onpath-xdp", 0, onXDP)})
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	used := map[string]int{}
	return abba(ctx, r.Rounds(), lines, func(round int, c built) error {
		r.say("new flows, round %d of %d, %s", round+1, r.Rounds(), c.name)
		flows := flowsOf(1 << 26)
		flows.First = used[c.name]
		t, err := c.maximum(ctx, traffic.Job{Flows: flows, Order: traffic.Sequential, Time: pick(r, 1500*time.Millisecond, 200*time.Millisecond)})
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		used[c.name] += 1 << 24 // far more than were sent
		r.sample(flowsNewCase, c.name, metricFlowRate, unitFlows, round, t.rate())
		r.sample(flowsNewCase, c.name, MetricCPU, "ns/packet", round, t.cpu())
		return nil
	})
}

// onpathToSink is a chain whose only instance is a sink, so that nothing but the
// decision is measured. flows is the size of the flow table, 0 the default.
func onpathToSink(name string, flows int, fast onpath.Fast) router {
	return onpathRouter(name, flows, fast, func(l *line) (*onpath.DatapathConfig, error) {
		ns, err := wireRouted(l.Bed, l.router, flowsSinkElement, false)
		if err != nil {
			return nil, err
		}
		s, err := traffic.NewSink(ns, "eth0")
		if err != nil {
			return nil, err
		}
		l.After(s.Close)
		l.far = s
		return chainConfig(toServers(), routedElement(flowsSinkElement)), nil
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
