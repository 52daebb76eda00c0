package lab

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/onpath/onpath"
)

// attachment is an interface on a segment, and the delay from it to the
// segment's middle.
type attachment struct {
	host  *Host
	face  *Interface
	delay onpath.Duration
}

// segment is what one Ethernet broadcast reaches: a link between two hosts, or
// a set of joined switches with all their links.
type segment struct{ attached []attachment }

// segments finds the segments of a topology.
func segments(t *Topology) []*segment {
	parent := map[string]string{} // switches that are joined have the same root
	var root func(s string) string
	root = func(s string) string {
		if p, ok := parent[s]; ok && p != s {
			return root(p)
		}
		return s
	}
	for _, l := range t.Links {
		if t.Switch(l.A.Node) != nil && t.Switch(l.B.Node) != nil {
			parent[root(l.A.Node)] = root(l.B.Node)
		}
	}
	of := map[string]*segment{}
	var all []*segment
	attach := func(s *segment, e End, delay onpath.Duration) {
		if h := t.Host(e.Node); h != nil {
			s.attached = append(s.attached, attachment{h, h.Interface(e.Interface), delay})
		}
	}
	for _, l := range t.Links {
		s := &segment{}
		switch {
		case t.Switch(l.A.Node) != nil:
			if r := root(l.A.Node); of[r] != nil {
				s = of[r]
			} else {
				of[r] = s
				all = append(all, s)
			}
		case t.Switch(l.B.Node) != nil:
			if r := root(l.B.Node); of[r] != nil {
				s = of[r]
			} else {
				of[r] = s
				all = append(all, s)
			}
		default:
			all = append(all, s)
		}
		attach(s, l.A, l.There.Delay)
		attach(s, l.B, l.Back.Delay)
	}
	return all
}

// hop is a way from one host to a neighbour on a segment.
type hop struct {
	from, to *attachment
	cost     int64
}

// hopCost makes a path of fewer hops win among paths of equal delay: 1 µs.
const hopCost = 1000

// AutoRoutes computes the routes that host h gets from "routes: auto": for
// each prefix of the topology that h is not in, the first hop of the path with
// the least delay, then the fewest hops, over hosts that forward.
func (t *Topology) AutoRoutes(h *Host) []Route {
	hops := map[*Host][]hop{}
	for _, s := range segments(t) {
		for i := range s.attached {
			for j := range s.attached {
				from, to := &s.attached[i], &s.attached[j]
				if from.host != to.host {
					hops[from.host] = append(hops[from.host], hop{from, to, int64(from.delay) + int64(to.delay) + hopCost})
				}
			}
		}
	}
	own := map[netip.Prefix]bool{}
	for _, r := range h.Routes {
		own[r.To] = true // what is written by hand wins
	}
	for _, f := range h.Interfaces {
		for _, a := range f.Addresses {
			own[a.Masked()] = true
		}
	}
	var routes []Route
	for _, v4 := range []bool{true, false} {
		found := reached(h, hops, v4)
		slices.SortStableFunc(found, func(a, b reach) int { // who forwards reaches all of its networks
			return cmp.Compare(boolRank(b.host.Forwarding), boolRank(a.host.Forwarding))
		})
		for _, r := range found {
			for _, to := range networks(r.host, v4) {
				if !own[to] {
					own[to] = true
					routes = append(routes, Route{To: to, Via: r.via, Device: r.device})
				}
			}
		}
	}
	return routes
}

// reach is a host that h can reach, and its first hop.
type reach struct {
	host   *Host
	cost   int64
	via    netip.Addr
	device string
}

// reached is Dijkstra's algorithm over the hops that have addresses of the
// family; hosts are in order of cost.
func reached(h *Host, hops map[*Host][]hop, v4 bool) []reach {
	done := map[*Host]bool{h: true}
	var frontier, out []reach
	expand := func(from *reach, at *Host) {
		for _, p := range hops[at] {
			via, ok := neighbour(p.from.face, p.to.face, v4)
			if !ok || done[p.to.host] {
				continue
			}
			r := reach{host: p.to.host, cost: p.cost, via: via, device: p.from.face.Name}
			if from != nil {
				r.cost, r.via, r.device = from.cost+p.cost, from.via, from.device
			}
			frontier = append(frontier, r)
		}
	}
	expand(nil, h)
	for len(frontier) > 0 {
		slices.SortStableFunc(frontier, func(a, b reach) int { return cmp.Compare(a.cost, b.cost) })
		r := frontier[0]
		frontier = frontier[1:]
		if done[r.host] {
			continue
		}
		done[r.host] = true
		out = append(out, r)
		if r.host.Forwarding {
			expand(&r, r.host)
		}
	}
	return out
}

// neighbour is an address of to in a network that both interfaces are in.
func neighbour(from, to *Interface, v4 bool) (netip.Addr, bool) {
	for _, a := range from.Addresses {
		for _, b := range to.Addresses {
			if a.Addr().Is4() == v4 && a.Masked() == b.Masked() {
				return b.Addr(), true
			}
		}
	}
	return netip.Addr{}, false
}

func networks(h *Host, v4 bool) []netip.Prefix {
	var out []netip.Prefix
	for _, f := range h.Interfaces {
		for _, a := range f.Addresses {
			if a.Addr().Is4() == v4 && !a.Addr().IsLinkLocalUnicast() {
				out = append(out, a.Masked())
			}
		}
	}
	return out
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}
