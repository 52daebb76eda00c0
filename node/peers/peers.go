// Package peers knows how the other nodes are: which of their instances take packets, whose
// machine answers, and how far they are.
package peers

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

var (
	descPeers = prometheus.NewDesc("onpath_node_peer_reachable",
		"1 if the data path of another node answers, 0 if it is lost.",
		[]string{"peer"}, nil)
	descLosses = prometheus.NewDesc("onpath_node_peer_losses_total", "Times that another node was lost.", nil, nil)
	descRounds = prometheus.NewDesc("onpath_node_peer_probe_rounds_total",
		"Rounds of questions to other nodes; late ones came too late to count a missing answer.",
		[]string{"late"}, nil)
)

// Peers knows how the other nodes are: which of their instances take packets, whose machine
// answers, and how far they are.
type Peers struct {
	detector  *detector
	echo      *echo
	measuring *measuring
}

// New makes one.
func New(p *base.Part, r *base.Rounds) *Peers {
	d := newDetector(p, r)
	return &Peers{detector: d, echo: &echo{part: p, detector: d}, measuring: &measuring{part: p}}
}

// Follow takes up a plan, before the data path does.
func (p *Peers) Follow(plan *onpath.NodePlan) {
	p.detector.follow(plan)
	p.echo.follow(plan)
}

// Measure has measured what a plan says.
func (p *Peers) Measure(plan *onpath.NodePlan) {
	p.measuring.set(plan.Measure, plan.Datapath.Underlay.Address)
}

// Restore takes up what an earlier agent knew.
func (p *Peers) Restore() { p.detector.restore() }

// Run works until ctx ends.
func (p *Peers) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, run := range []func(context.Context){p.echo.run, p.detector.run, p.detector.save} {
		wg.Go(func() { run(ctx) })
	}
}

// States are what is known of peers' data paths, by name.
func (p *Peers) States(list []onpath.Peer) map[string]onpath.PeerState {
	return p.detector.peerStates(list)
}

// Unreachable are the names of peers that do not answer.
func (p *Peers) Unreachable() []string { return p.echo.unreachable() }

// Indirect are the names of peers to which VXLAN in clear text is no way, in order.
func (p *Peers) Indirect() []string { return p.detector.indirect() }

// Distances are what was measured last, in order.
func (p *Peers) Distances() []onpath.Distance { return p.measuring.distances() }

// Collect sends what metrics tell of peers.
func (p *Peers) Collect(ch chan<- prometheus.Metric) { p.detector.collect(ch) }

// Describe sends their descriptions.
func Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPeers, descLosses, descRounds} {
		ch <- d
	}
}

func (r *detector) collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, j := range r.peers {
		up := 1.0
		if j.lost {
			up = 0
		}
		if j.ever {
			ch <- prometheus.MustNewConstMetric(descPeers, prometheus.GaugeValue, up, r.names[a])
		}
	}
	ch <- prometheus.MustNewConstMetric(descLosses, prometheus.CounterValue, float64(r.losses))
	ch <- prometheus.MustNewConstMetric(descRounds, prometheus.CounterValue, float64(r.rounds-r.late), "no")
	ch <- prometheus.MustNewConstMetric(descRounds, prometheus.CounterValue, float64(r.late), "yes")
}
