// Package punt reads the packets that the data path hands to the agent: those for sleeping
// instances, which it keeps, and those of signalling.
package punt

import (
	"context"
	"sync"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// Port reads the data path's punt port for all that want something of it.
type Port struct {
	mu      sync.Mutex
	changed chan struct{}
	// sleepers keep what is for sleeping instances, by their vports.
	sleepers map[onpath.VportID]*Kept
	signals  func(onpath.Punted) // nil: nobody takes part in signalling
	// lost is how many packets came for sleeping instances that did not get them.
	lost map[onpath.VportID]uint64
	room keptRoom
}

// New makes a port, which Run reads.
func New() *Port {
	return &Port{changed: make(chan struct{}, 1), sleepers: map[onpath.VportID]*Kept{}, lost: map[onpath.VportID]uint64{},
		room: keptRoom{of: map[string]int{}}}
}

// Run reads while somebody wants to.
func (p *Port) Run(ctx context.Context, dp onpath.Datapath) {
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

func (p *Port) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signals != nil || len(p.sleepers) > 0
}

func (p *Port) take(x onpath.Punted) {
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

// Hear has signalling's packets given to f until ctx ends.
func (p *Port) Hear(ctx context.Context, f func(onpath.Punted)) {
	p.set(func() { p.signals = f })
	context.AfterFunc(ctx, func() { p.set(func() { p.signals = nil }) })
}

// Keep has what is for some vports kept, until forget.
func (p *Port) Keep(vports []onpath.VportID, k *Kept) {
	p.set(func() {
		for _, v := range vports {
			p.sleepers[v] = k
		}
	})
}

// Forget ends what Keep began.
func (p *Port) Forget(vports []onpath.VportID) {
	p.set(func() {
		for _, v := range vports {
			delete(p.sleepers, v)
			delete(p.lost, v)
		}
	})
}

func (p *Port) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	base.Kick(p.changed)
}

// lose counts a packet that the instance at a vport will not get.
func (p *Port) lose(v onpath.VportID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost[v]++
}

// NewKept makes what keeps packets for one instance of a tenant.
func (p *Port) NewKept(tenant string) *Kept {
	return &Kept{come: make(chan struct{}, 1), port: p, tenant: tenant}
}

// AddLost adds what was lost here to the data path's counters.
func (p *Port) AddLost(c *onpath.Counters) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, n := range p.lost {
		if v, ok := c.Vports[id]; ok {
			v.NotKept = n
			c.Vports[id] = v
		}
	}
}
