package node

import (
	"fmt"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/leases"
)

// refusal is a plan of the server's that could not be taken. The server does not
// send it again: it is tried until it is taken, or another one.
type refusal struct {
	plan *onpath.NodePlan
	err  error
}

// plans are what is wanted of the node, and what of it is in force.
type plans struct {
	mu      sync.Mutex
	now     planState
	refusal *refusal // of the newest plan; nil: it is taken
	problem string   // why the wanted plan is not in force
	failing base.Complaint
}

// planState is what is known of plans at one time. Nobody writes to the plans themselves.
type planState struct {
	wanted  *onpath.NodePlan // nil: there is none yet
	leased  leases.List      // as taken up last
	inForce *onpath.NodePlan // last one acknowledged; may be wanted
	// applied was applied by this process, perhaps with vports still missing.
	applied *onpath.NodePlan
	acked   uint64 // generation in force since this process started
	problem string // why the newest plan is not in force; "" if it is, or on its way
}

// joined is the wanted plan with the leases.
func (p planState) joined() *onpath.NodePlan {
	if p.wanted == nil {
		return nil
	}
	return p.wanted.WithLeases(p.leased.Leases)
}

// fallback is what stays in force while the wanted plan cannot be applied: nothing, once it
// has been.
func (p planState) fallback() *onpath.NodePlan {
	if p.inForce != p.wanted && p.applied != p.wanted {
		return p.inForce
	}
	return nil
}

// get is what is known now.
func (p *plans) get() planState {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now
	now.problem = p.problem
	if p.refusal != nil {
		now.problem = p.refusal.err.Error()
	}
	return now
}

// restore takes up the plan of an earlier process.
func (p *plans) restore(s *savedPlan) {
	for _, p := range []*onpath.NodePlan{s.Wanted, s.InForce} {
		if p != nil {
			p.Datapath.Restored = true // what it says of durations may be long over
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.wanted, p.now.inForce = s.Wanted, s.InForce
	if s.Acked {
		p.now.inForce = s.Wanted
	}
}

// want has another plan wanted.
func (p *plans) want(plan *onpath.NodePlan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.wanted, p.problem, p.refusal = plan, "", nil
}

// lease takes up other leases; it reports whether they are others.
func (p *plans) lease(list leases.List) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if list.Number <= p.now.leased.Number {
		return false
	}
	p.now.leased = list
	return true
}

// refuse notes that a plan is not taken: instead of an earlier refusal, if that is not nil
// and still stands. It reports whether that is news.
func (p *plans) refuse(plan *onpath.NodePlan, err error, instead *refusal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if instead != nil && (p.refusal != instead || err.Error() == instead.err.Error()) {
		return false
	}
	p.refusal = &refusal{plan: plan, err: err}
	return true
}

// refused is the refusal for which another attempt may do: a plan that is wrong
// stays so.
func (p *plans) refused() *refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusal == nil || onpath.CodeOf(p.refusal.err) == onpath.CodeInvalid {
		return nil
	}
	return p.refusal
}

// stands reports whether a refusal is still the last word.
func (p *plans) stands(r *refusal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refusal == r
}

// takeBack forgets the refusal: the wanted plan is the newest.
func (p *plans) takeBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusal = nil
}

// setApplied notes that a plan has been applied, whole or with vports missing, and what is
// wrong then. ack: it is to be acknowledged; save: it is in force and was not.
func (p *plans) setApplied(plan *onpath.NodePlan, whole bool, wrong string) (ack, save bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.wanted != plan { // a newer one came meanwhile
		return false, false
	}
	p.now.applied, p.problem, p.failing = plan, wrong, base.Complaint{}
	ack = whole && p.now.acked != plan.Generation
	save = ack && p.now.inForce != plan
	if whole {
		p.now.inForce = plan
	}
	return ack, save
}

// acknowledge notes that a generation is in force, and saved.
func (p *plans) acknowledge(generation uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.acked = generation
}

// setFailed notes why a plan cannot be applied. It reports whether that is to be logged.
func (p *plans) setFailed(plan *onpath.NodePlan, err error, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.wanted != plan {
		return false
	}
	p.problem = err.Error()
	return p.failing.Due(fmt.Sprint(plan.Generation, ": ", err), now)
}
