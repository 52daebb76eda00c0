package pool

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/near"
)

// choosePlaces chooses nodes of a cloudlet; nil: not all instances fit.
func (p *promises) choosePlaces(cloudlet string, slots []onpath.ReservationSlot, s *onpath.ReservationSpec) (
	nodes []string, fitted []onpath.ReservationSlot) {
	if s.Nodes == 0 {
		return p.cal.Place(cloudlet, whole(slots), s.Instances, false), slots
	}
	from, until := slots[0].From, end(slots[0].Until)
	rooms := map[onpath.Resources][]string{} // free machines by what they have
	for _, name := range p.cal.Nodes(cloudlet) {
		room, _, usable := p.cal.Room(name)
		n := p.nodes[name]
		if usable && n.Taken == (onpath.Resources{}) && p.cal.Peak(name, from, until) == (onpath.Resources{}) {
			rooms[room] = append(rooms[room], name)
		}
	}
	for _, name := range p.cal.Nodes(cloudlet) { // in order
		room, _, _ := p.cal.Room(name)
		if list := rooms[room]; len(list) >= s.Nodes {
			fitted = slices.Clone(slots)
			fitted[0].Capacity = room
			return list[:s.Nodes], fitted
		}
	}
	return nil, nil
}

// orderCloudlets are the cloudlets where a request may go, the nearest first.
func (p *promises) orderCloudlets(s *onpath.ReservationSpec) (order, notes []string, err error) {
	refuse := func(field, remedy, format string, args ...any) error {
		e := onpath.Errorf(onpath.CodeInvalid, format, args...)
		e.Field, e.Remedy = field, remedy
		return e
	}
	if s.Cloudlet != "" {
		if _, ok := p.cloudlets[s.Cloudlet]; !ok {
			return nil, nil, refuse("spec.cloudlet", "write one of "+strings.Join(sortedKeys(p.cloudlets), ", "),
				"there is no cloudlet %s", s.Cloudlet)
		}
		return []string{s.Cloudlet}, nil, nil
	}
	if !s.Near.IsValid() {
		return sortedKeys(p.cloudlets), nil, nil
	}
	home := p.distances().Home(s.Near.Prefix)
	if home == "" {
		return nil, nil, refuse("spec.near",
			"write cloudlet instead, or have the operator write spec.prefixes of the cloudlet",
			"no cloudlet says that users with %s are near it", s.Near)
	}
	return p.orderFrom(home), []string{fmt.Sprintf("%s is near cloudlet %s; the others by round trips and locations", s.Near, home)}, nil
}

// orderFrom are all cloudlets by their distance from one; kept, as it takes longer than the rest
// of a decision.
func (p *promises) orderFrom(home string) []string {
	if order := p.orders[home]; order != nil {
		return order
	}
	order := p.distances().Order(home)
	if p.orders == nil {
		p.orders = map[string][]string{}
	}
	p.orders[home] = order
	return order
}

// distances are the cloudlets by what tells near from far; kept, as they are most of what a
// decision would allocate.
func (p *promises) distances() near.Map {
	if p.near == nil {
		p.near = make(near.Map, len(p.cloudlets))
		for name, cl := range p.cloudlets {
			p.near[name] = near.Cloudlet{Location: cl.Location, Prefixes: cl.Prefixes, RTT: cl.RTT}
		}
	}
	return p.near
}

// explainRefusal says what is lacking where, and from when it would fit.
func (p *promises) explainRefusal(r *onpath.Reservation, slots []onpath.ReservationSlot, order []string) error {
	var lacks []string
	s := &r.Spec
	for _, cl := range order {
		if len(lacks) == 5 {
			lacks = append(lacks, fmt.Sprintf("and %d more cloudlets", len(order)-5))
			break
		}
		lacks = append(lacks, p.findLack(cl, slots, s))
	}
	if len(order) == 0 {
		lacks = []string{"there is no cloudlet"}
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "declined: %s", strings.Join(lacks, "; "))
	e.Remedy = "ask for less, for another time or elsewhere"
	if s.Nodes > 0 {
		return e
	}
	if later, ok := p.cal.Earliest(order, whole(slots), s.Instances, false); ok && later > 0 {
		at := slots[0].From.Add(later)
		e.Remedy = fmt.Sprintf("it would fit from %s on (%s later)", text(at), later.Round(time.Millisecond))
	}
	return e
}

// findLack is why one more instance does not fit into a cloudlet: of the node that lacks
// least at the first instant where it does.
func (p *promises) findLack(cloudlet string, slots []onpath.ReservationSlot, s *onpath.ReservationSpec) string {
	if s.Nodes > 0 {
		return fmt.Sprintf("cloudlet %s has not %d equal machines of which nothing is promised then", cloudlet, s.Nodes)
	}
	names := p.cal.Nodes(cloudlet)
	if len(names) == 0 {
		return fmt.Sprintf("cloudlet %s has no nodes", cloudlet)
	}
	var away int
	best, bestNode, bestAt := onpath.Resources{}, "", time.Time{}
	for _, name := range names {
		if _, _, usable := p.cal.Room(name); !usable {
			away++
			continue
		}
		at, lack := p.cal.Lack(name, whole(slots))
		if lack == (onpath.Resources{}) {
			continue // it fits there, but not as often as asked for
		}
		if bestNode == "" || best.CPU > lack.CPU || best.CPU == lack.CPU && best.Memory > lack.Memory {
			best, bestNode, bestAt = lack, name, at
		}
	}
	switch {
	case bestNode == "" && away == len(names):
		return fmt.Sprintf("no node of cloudlet %s is ready", cloudlet)
	case bestNode == "":
		return fmt.Sprintf("cloudlet %s has no room for all %d instances together", cloudlet, s.Instances)
	}
	return fmt.Sprintf("in cloudlet %s node %s lacks %s at %s", cloudlet, bestNode, parts(best), text(bestAt))
}

// tooManyDisplaced says that others made room as often as they have to.
func tooManyDisplaced(d *decision, node string) error {
	e := onpath.Errorf(onpath.CodeNoCapacity, "declined: node %s has no room for it beside what others have reserved, and "+
		"%d running instances of others move at most within %s so that reservations of tenant %s can grow",
		node, mostDisplaced, displacedWithin, d.key.Tenant)
	e.Remedy = fmt.Sprintf("ask for less, ask again from %s on, or make another reservation", text(d.displaceAgain))
	return e
}
