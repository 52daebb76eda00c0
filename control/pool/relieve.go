package pool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
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
	movesAtOnce   = 32               // then others' beginnings and payments have their turn
)

// relieve moves instances off nodes that drain, and, off nodes that have less than they have
// promised, those that do not run yet. A node may have less by the operator's doing, or since the
// planner placed instances outside of reservations while the pool promised the same room.
func (p *Pool) relieve(ctx context.Context) {
	var list []relieving
	p.queue.look(func(s *state) {
		if !s.broken {
			list = s.findOverfull(s.clock())
		}
	})
	moves := 0
	for i, x := range list {
		stays := false
		for _, k := range x.reservations {
			leaves := false
			p.queue.look(func(s *state) { leaves = s.shallLeave(k, x.node, s.clock()) })
			if leaves && moves == movesAtOnce {
				p.queue.look(func(s *state) { s.promises.relief.lookAt(list[i:]) })
				return
			}
			if leaves {
				moves++
				_, err := p.Move(ctx, k, x.node, "")
				stays = stays || err != nil
			}
		}
		p.queue.look(func(s *state) {
			if message := s.promises.noteRelieved(x.node, stays, s.clock()); message != "" {
				p.o.Tell(onpath.Key{Kind: onpath.KindNode, Name: x.node}, "Oversold", message, true)
			}
		})
	}
}

// relieving are the reservations on a node, one for each instance.
type relieving struct {
	node         string
	reservations []onpath.Key
}

// lookAt has nodes looked at again at the next tick.
func (r *relief) lookAt(list []relieving) {
	for _, x := range list {
		r.look[x.node] = true
	}
}

// findOverfull are the nodes that reservations have to leave, and these.
func (s *state) findOverfull(now time.Time) (list []relieving) {
	p := &s.promises
	r := &p.relief
	for name, n := range p.nodes {
		if !n.Drain && !r.look[name] && !r.over[name] || n.Gone || n.NoReport || now.Before(r.after[name]) {
			continue
		}
		delete(r.look, name)
		leaves := n.Drain && p.cal.Peak(name, now, calendar.Forever) != (onpath.Resources{})
		if leaves || r.over[name] || len(p.findOversold(name, now)) > 0 {
			list = append(list, relieving{node: name})
		}
	}
	slices.SortFunc(list, func(a, b relieving) int { return strings.Compare(a.node, b.node) })
	for i := range list {
		list[i].reservations = s.rows.reservedOn(list[i].node)
	}
	return list
}

// shallLeave reports whether an instance of a reservation is to leave a node.
func (s *state) shallLeave(k onpath.Key, node string, now time.Time) bool {
	e := s.rows.entries[k]
	if e == nil || s.promises.nodes[node].Drain {
		return e != nil
	}
	st := &e.obj.Status
	return (st.Begin().After(now) || now.Sub(confirmedAt(st)) < justConfirmed) &&
		slices.ContainsFunc(s.promises.findOversold(node, now), func(at time.Time) bool { return st.At(at) != nil })
}

// noteRelieved notes how it went, and says once of a node that it has less than it has promised.
func (p *promises) noteRelieved(node string, stays bool, now time.Time) (message string) {
	r := &p.relief
	at := p.findOversold(node, now)
	over := len(at) > 0 && !p.nodes[node].Drain
	if over && !r.over[node] {
		message = fmt.Sprintf("from %s on it has promised more to reservations than it has; give back what it had (capacity, "+
			"operatorShare, room that instances outside of reservations take), or move some of it: onpath move INSTANCE", text(at[0]))
	}
	if delete(r.over, node); over {
		r.over[node] = true
	}
	if delete(r.after, node); over || stays {
		r.after[node] = now.Add(relieveAgain)
	}
	return message
}

// findOversold are the instants from which on a node has less than it has promised.
func (p *promises) findOversold(node string, now time.Time) []time.Time {
	room, _, _ := p.cal.Room(node)
	return p.promisedOver(node, room, now)
}

// promisedOver are the instants from which on a node has promised more than there is room for.
func (p *promises) promisedOver(node string, room onpath.Resources, now time.Time) (at []time.Time) {
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

// Oversells says which nodes would have less than they have promised, and from when on, if nodes
// had other capacities, or cloudlets other shares of the operator.
func (p *Pool) Oversells(capacities map[string]onpath.Resources, shares map[string]int) (notes []string) {
	p.queue.look(func(s *state) { notes = s.promises.describeOversold(capacities, shares, s.clock()) })
	return notes
}

func (p *promises) describeOversold(capacities map[string]onpath.Resources, shares map[string]int, now time.Time) (notes []string) {
	for _, name := range sortedKeys(p.nodes) {
		n := p.nodes[name]
		capacity, changed := capacities[name]
		share, shared := shares[n.Cloudlet]
		if !changed && !shared {
			continue
		}
		if !changed {
			capacity = n.Capacity
		}
		if !shared {
			share = p.cloudlets[n.Cloudlet].Share
		}
		room := atLeastNothing(plan.TenantsPart(capacity, share).Sub(n.Taken))
		if at := p.promisedOver(name, room, now); len(at) > 0 {
			notes = append(notes, fmt.Sprintf("node %s has promised more to reservations than it would have, from %s on: "+
				"what has not begun moves as far as others have room, the rest stays", name, text(at[0])))
		}
	}
	return notes
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
func (p *Pool) PromisedTo(node string) (list []onpath.Key) {
	p.queue.look(func(s *state) { list = slices.Compact(s.rows.reservedOn(node)) })
	return list
}
