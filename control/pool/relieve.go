package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/calendar"
)

// relief is what is known of nodes that reservations have to leave: those that drain, of which
// all go, and those that have less than they have promised, of which some may.
type relief struct {
	look  map[string]bool      // nodes of which it is not known yet whether they have what they promised
	over  map[string]bool      // nodes that have less, as was told
	after map[string]time.Time // when moves off a node are tried again
}

func newRelief() relief {
	return relief{look: map[string]bool{}, over: map[string]bool{}, after: map[string]time.Time{}}
}

// Bounds of moves that nobody asked for.
const (
	relieveAgain  = 10 * time.Second // what found no room is tried again
	justConfirmed = time.Minute      // what is as new as that is disrupted by no move
)

// relieve moves instances off nodes that drain, and, off nodes that have less than they have
// promised, those that do not run yet. A node may have less by the operator's doing, or since the
// planner placed instances outside of reservations while the pool promised the same room.
func (p *Pool) relieve(ctx context.Context) {
	for _, x := range p.nodesToRelieve() {
		stays := false
		for _, k := range x.reservations {
			if p.shallLeave(k, x.node) {
				_, err := p.Move(ctx, k, x.node, "")
				stays = stays || err != nil
			}
		}
		p.relieved(x.node, stays)
	}
}

// relieving are the reservations on a node, one for each instance.
type relieving struct {
	node         string
	reservations []onpath.Key
}

func (p *Pool) nodesToRelieve() (list []relieving) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock()
	for name, n := range p.promises.nodes {
		r := &p.promises.relief
		if !n.Drain && !r.look[name] && !r.over[name] || n.Gone || n.NoReport || p.broken || now.Before(r.after[name]) {
			continue
		}
		delete(r.look, name)
		leaves := n.Drain && p.promises.cal.Peak(name, now, calendar.Forever) != (onpath.Resources{})
		if leaves || r.over[name] || len(p.promises.findOversold(name, now)) > 0 {
			list = append(list, relieving{node: name})
		}
	}
	slices.SortFunc(list, func(a, b relieving) int { return strings.Compare(a.node, b.node) })
	for i := range list {
		list[i].reservations = p.rows.reservedOn(list[i].node)
	}
	return list
}

// shallLeave reports whether an instance of a reservation is to leave a node.
func (p *Pool) shallLeave(k onpath.Key, node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, now := p.rows.entries[k], p.clock()
	if e == nil || p.promises.nodes[node].Drain {
		return e != nil
	}
	st := &e.obj.Status
	return (st.Begin().After(now) || now.Sub(confirmedAt(st)) < justConfirmed) &&
		slices.ContainsFunc(p.promises.findOversold(node, now), func(at time.Time) bool { return st.At(at) != nil })
}

// relieved notes how it went, and tells of a node that has less than it has promised once.
func (p *Pool) relieved(node string, stays bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, now := &p.promises.relief, p.clock()
	at := p.promises.findOversold(node, now)
	over := len(at) > 0 && !p.promises.nodes[node].Drain
	if over && !r.over[node] {
		p.o.Tell(onpath.Key{Kind: onpath.KindNode, Name: node}, "Oversold", fmt.Sprintf("from %s on it has promised more to "+
			"reservations than it has; give back what it had (capacity, operatorShare, room that instances outside of reservations "+
			"take), or move some of it: onpath move INSTANCE", text(at[0])), true)
	}
	if delete(r.over, node); over {
		r.over[node] = true
	}
	if delete(r.after, node); over || stays {
		r.after[node] = now.Add(relieveAgain)
	}
}

// findOversold are the instants from which on a node has less than it has promised.
func (p *promises) findOversold(node string, now time.Time) (at []time.Time) {
	room, _, _ := p.cal.Room(node)
	if room.Fits(p.cal.Peak(node, now, calendar.Forever)) {
		return nil
	}
	for _, s := range p.cal.Steps(node, now, calendar.Forever) {
		if !room.Fits(s.Promised) {
			at = append(at, s.At)
		}
	}
	return at
}

// confirmedAt is when a reservation was accepted.
func confirmedAt(st *onpath.ReservationStatus) (at time.Time) {
	for _, s := range st.Steps {
		if s.State == onpath.ReservationConfirmed {
			return s.At
		}
	}
	return at
}

// PromisedTo are the live reservations with instances on a node.
func (p *Pool) PromisedTo(node string) []onpath.Key {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Compact(p.rows.reservedOn(node))
}
