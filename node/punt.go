package node

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

var descNotKept = prometheus.NewDesc("onpath_vport_not_kept_packets_total",
	"Packets handed to a vport while its instance slept or woke that were lost, for more came than is kept, or it did not start.",
	[]string{"vport", "instance"}, nil)

// punts reads the data path's punt port for all that want something of it.
type punts struct {
	mu      sync.Mutex
	changed chan struct{}
	// sleepers keep what is for sleeping instances, by their vports.
	sleepers map[onpath.VportID]*kept
	signals  func(onpath.Punted) // nil: nobody takes part in signalling
	// lost is how many packets came for sleeping instances that did not get them.
	lost map[onpath.VportID]uint64
}

func newPunts() *punts {
	return &punts{changed: make(chan struct{}, 1), sleepers: map[onpath.VportID]*kept{}, lost: map[onpath.VportID]uint64{}}
}

// run reads while somebody wants to.
func (p *punts) run(ctx context.Context, dp onpath.Datapath) {
	reader, ok := dp.(onpath.PuntReader)
	if !ok {
		return
	}
	for ctx.Err() == nil {
		reading, stop := context.WithCancel(ctx)
		over := make(chan struct{})
		if close(over); p.wanted() {
			over = make(chan struct{})
			go func() {
				defer close(over)
				_ = reader.Punted(reading, p.take)
			}()
		}
		for was := p.wanted(); ctx.Err() == nil && p.wanted() == was; {
			select {
			case <-ctx.Done():
			case <-p.changed:
			}
		}
		stop()
		<-over
	}
}

func (p *punts) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signals != nil || len(p.sleepers) > 0
}

func (p *punts) take(x onpath.Punted) {
	p.mu.Lock()
	k, signals := p.sleepers[x.Vport], p.signals
	p.mu.Unlock()
	switch {
	case x.Frame != nil && k != nil:
		k.add(x)
	case x.Frame != nil:
		p.lose(x.Vport)
	case x.Frame == nil && signals != nil:
		signals(x)
	}
}

// hear has signalling's packets given to f until ctx ends.
func (p *punts) hear(ctx context.Context, f func(onpath.Punted)) {
	p.set(func() { p.signals = f })
	context.AfterFunc(ctx, func() { p.set(func() { p.signals = nil }) })
}

// keep has what is for some vports kept, until forget.
func (p *punts) keep(vports []onpath.VportID, k *kept) {
	p.set(func() {
		for _, v := range vports {
			p.sleepers[v] = k
		}
	})
}

func (p *punts) forget(vports []onpath.VportID) {
	p.set(func() {
		for _, v := range vports {
			delete(p.sleepers, v)
			delete(p.lost, v)
		}
	})
}

func (p *punts) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	base.Kick(p.changed)
}

// lose counts a packet that the instance at a vport will not get.
func (p *punts) lose(v onpath.VportID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost[v]++
}

// counters are the data path's, with what was lost here after it.
func (a *Agent) counters(ctx context.Context) (*onpath.Counters, error) {
	c, err := a.opt.Datapath.Counters(ctx)
	if err != nil {
		return nil, err
	}
	a.punts.mu.Lock()
	defer a.punts.mu.Unlock()
	for id, n := range a.punts.lost {
		if v, ok := c.Vports[id]; ok {
			v.NotKept = n
			c.Vports[id] = v
		}
	}
	return c, nil
}
