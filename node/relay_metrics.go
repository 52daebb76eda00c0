package node

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/instance"
)

var (
	descRelayed = prometheus.NewDesc("onpath_relay_connections",
		"Connections that the node's relays hold for the tenant of an instance.", []string{"instance"}, nil)
	descRelayedBytes = prometheus.NewDesc("onpath_relay_bytes_total",
		"Bytes of TCP's payload that they carried for it; toward: origin, client.", []string{"instance", "toward"}, nil)
	descVanished = prometheus.NewDesc("onpath_relay_vanished_total",
		"Connections that the node's relays have left to the kernel after slow start.", []string{"instance"}, nil)
	descStayed = prometheus.NewDesc("onpath_relay_stayed_total",
		"Connections of the node's relays that kept their relay after slow start, and why.", []string{"instance", "reason"}, nil)
)

// relaysAnswer is how long relays may take to say what they do.
const relaysAnswer = time.Second

// collectRelays sends what relays count.
func (c collector) collectRelays(ch chan<- prometheus.Metric, instances []instance.Fact) {
	ctx, cancel := context.WithTimeout(context.Background(), relaysAnswer)
	defer cancel()
	for name, p := range processesOf[onpath.Relaying](instances) {
		r, err := p.Relayed(ctx)
		if err != nil {
			c.part.Log.Warn("cannot read what a relay counts", "instance", name, "err", err)
			continue
		}
		ch <- prometheus.MustNewConstMetric(descRelayed, prometheus.GaugeValue, float64(r.Connections), name)
		ch <- prometheus.MustNewConstMetric(descRelayedBytes, prometheus.CounterValue, float64(r.ToOrigin), name, "origin")
		ch <- prometheus.MustNewConstMetric(descRelayedBytes, prometheus.CounterValue, float64(r.ToClient), name, "client")
		ch <- prometheus.MustNewConstMetric(descVanished, prometheus.CounterValue, float64(r.Vanished), name)
		for why, n := range r.Stayed {
			ch <- prometheus.MustNewConstMetric(descStayed, prometheus.CounterValue, float64(n), name, why)
		}
	}
}

// processesOf are the running processes of a kind, by tenant/name.
func processesOf[T any](instances []instance.Fact) map[string]T {
	out := map[string]T{}
	for _, f := range instances {
		if p, ok := f.Process.(T); ok && !f.Leaving {
			out[f.Name()] = p
		}
	}
	return out
}
