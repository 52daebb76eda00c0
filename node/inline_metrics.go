package node

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/instance"
)

var (
	descVerdicts = prometheus.NewDesc("onpath_function_packets_total",
		"Packets (wire segments) that an ebpf function was given, by its verdict; bypass: it was out of service.",
		[]string{"instance", "verdict"}, nil)
	descReasons = prometheus.NewDesc("onpath_function_reason_packets_total",
		"Packets that an ebpf function dropped or answered, by its own reason.",
		[]string{"instance", "reason"}, nil)
	descSamples = prometheus.NewDesc("onpath_function_samples_total",
		"Packets whose time in an ebpf function was measured.",
		[]string{"instance"}, nil)
	descSpent = prometheus.NewDesc("onpath_function_sampled_seconds_total", "Time that these packets took.", []string{"instance"}, nil)
	descKey   = prometheus.NewDesc("onpath_function_key_packets_total",
		"Packets that a monitor counted for a key; those with the most.",
		[]string{"instance", "key", "direction"}, nil)
	descKeyBytes = prometheus.NewDesc("onpath_function_key_bytes_total",
		"IP bytes of these packets.",
		[]string{"instance", "key", "direction"}, nil)
	descModule = prometheus.NewDesc("onpath_module_events_total",
		"A counter of a module of a wasm function: packets and what became of them, or one that it declares.",
		[]string{"instance", "module", "name"}, nil)
	descOwn = prometheus.NewDesc("onpath_function_events_total",
		"A counter that the ebpf function itself declares.", []string{"instance", "name"}, nil)
)

// collectFunctions sends what ebpf functions count; names are the instances' by
// their vports.
func (c collector) collectFunctions(ch chan<- prometheus.Metric, all map[onpath.VportID]onpath.FunctionCounters,
	names map[onpath.VportID]string, instances []instance.Fact) {
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for id, f := range all {
		name := names[id]
		count(descVerdicts, float64(f.Passed.Packets), name, "next")
		count(descVerdicts, float64(f.Dropped.Packets), name, "drop")
		count(descVerdicts, float64(f.Answered.Packets), name, "answer")
		count(descVerdicts, float64(f.Bypassed.Packets), name, "bypass")
		for code, n := range f.Reasons {
			count(descReasons, float64(n), name, strconv.Itoa(int(code)))
		}
		count(descSamples, float64(f.Samples), name)
		count(descSpent, float64(f.Time)/1e9, name)
	}
	for name, p := range processesOf[onpath.Inline](instances) {
		own, err := p.Counters()
		if err != nil {
			c.part.Log.Warn("cannot read a function's own counters", "instance", name, "err", err)
			continue
		}
		for k, n := range own {
			count(descOwn, float64(n), name, k)
		}
		if keyed, ok := p.(onpath.KeyedCounters); ok {
			c.collectKeys(name, keyed, count)
		}
	}
}

// collectModules sends what modules of wasm functions count.
func (c collector) collectModules(ch chan<- prometheus.Metric, instances []instance.Fact) {
	for name, p := range processesOf[onpath.Modular](instances) {
		for module, counters := range p.ModuleCounters() {
			for k, n := range counters {
				ch <- prometheus.MustNewConstMetric(descModule, prometheus.CounterValue, float64(n), name, module, k)
			}
		}
	}
}

func (c collector) collectKeys(name string, p onpath.KeyedCounters, count func(*prometheus.Desc, float64, ...string)) {
	keys, err := p.Keys()
	if err != nil {
		c.part.Log.Warn("cannot read a monitor's counts", "instance", name, "err", err)
		return
	}
	for _, k := range keys {
		direction := "forward"
		if k.Reverse {
			direction = "reverse"
		}
		count(descKey, float64(k.Count.Packets), name, k.Key, direction)
		count(descKeyBytes, float64(k.Count.Bytes), name, k.Key, direction)
	}
}
