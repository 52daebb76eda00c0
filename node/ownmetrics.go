package node

import (
	"context"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"

	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/instance"
)

var descOwnRead = prometheus.NewDesc("onpath_instance_metrics_read",
	"Whether an instance's own metrics (Function.spec.metrics) could be read: 1 or 0.", []string{"instance"}, nil)

// reservedNames begin names of metrics that an instance cannot tell, for the agent does.
var reservedNames = []string{"onpath_", "go_", "process_", "promhttp_"}

// ownCollector exports what instances tell. Which names there are shows only then, so it
// describes none.
type ownCollector struct {
	part *base.Part
	read func(context.Context) []instance.OwnMetrics
}

// Describe implements prometheus.Collector.
func (ownCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c ownCollector) Collect(ch chan<- prometheus.Metric) {
	for _, own := range c.read(context.Background()) {
		good := 1.0
		if own.Err != nil {
			good = 0
			c.part.Log.Warn("cannot read an instance's own metrics", "instance", own.Name, "err", own.Err)
		}
		ch <- prometheus.MustNewConstMetric(descOwnRead, prometheus.GaugeValue, good, own.Name)
		sent := map[model.Fingerprint]bool{}
		for _, s := range own.Samples {
			m := named(s.Metric, own.Name)
			if f := m.Fingerprint(); !sent[f] { // twice would spoil the whole scrape
				sent[f] = true
				sendSample(ch, m, s.Value)
			}
		}
	}
}

// named are the labels of a value with the name of its instance. A label of that name is
// renamed, as Prometheus does.
func named(m model.Metric, instance string) model.Metric {
	m = m.Clone()
	if own, ok := m["instance"]; ok {
		m["exported_instance"] = own
	}
	m["instance"] = model.LabelValue(instance)
	return m
}

// sendSample sends a value. The type is not told: instances need not agree on it.
func sendSample(ch chan<- prometheus.Metric, labels model.Metric, value model.SampleValue) {
	metric := string(labels[model.MetricNameLabel])
	if slices.ContainsFunc(reservedNames, func(r string) bool { return strings.HasPrefix(metric, r) }) {
		return
	}
	var names, values []string
	for l, v := range labels {
		if l != model.MetricNameLabel {
			names, values = append(names, string(l)), append(values, string(v))
		}
	}
	d := prometheus.NewDesc(metric, "Told by instances themselves.", names, nil)
	if m, err := prometheus.NewConstMetric(d, prometheus.UntypedValue, float64(value), values...); err == nil {
		ch <- m
	}
}
