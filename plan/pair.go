package plan

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/onpath/onpath"
)

// pairing is where the halves of a deployment's pairs stand.
type pairing struct{ sides [2]string } // cloudlets: of side a, of side b

func (p *pairing) side(cloudlet string) string {
	if cloudlet == p.sides[0] {
		return onpath.PairA
	}
	return onpath.PairB
}

// pairs has a short form be of pairs. What runs by itself is replaced: it was not told of a
// partner.
func (d *deployment) pairs(c *chain, e *onpath.Element) {
	if at := c.obj.Spec.At.Cloudlets; e.Pair && len(at) == 2 && d.function != nil {
		d.pair = &pairing{[2]string{at[0], at[1]}}
		d.shape = hash([]string{d.shape, "pair"})
	}
}

// checkPair refuses functions that cannot be a half, and ends at which packets do not come
// by a gateway.
func (c *chain) checkPair() {
	e := c.obj.Spec.Pair()
	if e == nil || len(c.elements) != 1 || c.elements[0].d == nil || c.elements[0].d.function == nil {
		return
	}
	d := c.elements[0].d
	field := "spec.through[0].function"
	switch t := d.traits; {
	case !t.Informed:
		c.fail(onpath.CodeUnsupported, field, "name a container function",
			"function %s is of kind %s, which has no address and no process that could speak with a partner", d.fnName, t.Kind)
	case t.Attach != onpath.Routed || t.Addresses == onpath.AddressesNone:
		c.fail(onpath.CodeInvalid, field, "write attach: routed and addresses: private in it",
			"function %s has no address of its own, at which its partner could reach it", d.fnName)
	case d.spec.Packets != onpath.PacketsOriginate:
		c.fail(onpath.CodeInvalid, field, "write packets: originate in it",
			"function %s may not begin flows (packets: %s), and each half of a pair sends on what only the other was given",
			d.fnName, cmp.Or(d.spec.Packets, onpath.PacketsKeep))
	}
	if c.host != nil {
		c.fail(onpath.CodeUnsupported, "spec.from", "write the addresses of hosts behind a gateway",
			"an end is the machine of node %s, whose traffic meets no gateway", c.host.name)
	}
}

// side is that of the chain's pair in a cloudlet; "": it has none.
func (c *chain) side(cl *cloudlet) string {
	if c == nil {
		return ""
	}
	return c.obj.Spec.PairSide(cl.name)
}

// half reports whether an instance is, or is to be, one of a pair.
func (i *instance) half() bool {
	return i.obj.Spec.Pair != nil || i.d != nil && i.d.pair != nil && i.obj.Spec.Shape == i.d.shape
}

// alone reports whether an instance of a pair lacks a partner that serves.
func (i *instance) alone() bool { return i.half() && (i.partner == nil || !i.partner.up()) }

// lonely says what keeps a half from serving that by itself could.
func (i *instance) lonely() string {
	p := i.partner
	switch {
	case p == nil:
		return "waits for a partner in the other cloudlet"
	case p.report != nil && p.report.Message != "":
		return fmt.Sprintf("its partner %s on node %s is %s: %s", p.key.name, p.node.name, p.report.State, p.report.Message)
	case p.report != nil:
		return fmt.Sprintf("its partner %s on node %s is %s", p.key.name, p.node.name, p.report.State)
	}
	return fmt.Sprintf("its partner %s on node %s is not heard of", p.key.name, p.obj.Spec.Node)
}

// findPartners looks up who is whose partner: both have to say so.
func findPartners(w *world) {
	named := map[name]*instance{}
	for _, i := range w.instances {
		if i.obj.Spec.Pair != nil {
			named[i.key] = i
		}
	}
	for _, i := range named {
		p := named[name{i.key.tenant, i.obj.Spec.Pair.Partner}]
		if p != nil && p.node != nil && i.node != nil && p.obj.Spec.Pair.Partner == i.key.name {
			i.partner = p
		}
	}
}

// pairUp gives instances partners: each that stays and whose partner does not gets one that
// is in the same case in the other cloudlet.
func pairUp(w *rollout) {
	for _, n := range sortedNames(w.deployments) {
		d := w.deployments[n]
		if d.pair == nil {
			continue
		}
		var free [2][]*instance
		taken := map[int]bool{}
		for k, at := range d.pair.sides {
			cl := w.cloudlets[at]
			if cl == nil {
				continue
			}
			for _, i := range w.instancesOf(cl, d.key) {
				switch {
				case !isKept(w, d, i):
				case i.partner == nil || !isKept(w, d, i.partner) || !speakAcross(i.node, i.partner.node):
					free[k] = append(free[k], i)
				default:
					taken[i.obj.Spec.Pair.Number] = true
				}
			}
			slices.SortFunc(free[k], func(a, b *instance) int {
				return cmp.Or(cmp.Compare(a.number(), b.number()), cmp.Compare(a.obj.Spec.Key, b.obj.Spec.Key))
			})
		}
		for _, a := range free[0] {
			k := slices.IndexFunc(free[1], func(b *instance) bool { return speakAcross(a.node, b.node) })
			if k < 0 {
				continue
			}
			join(w, a, free[1][k], taken)
			free[1] = slices.Delete(free[1], k, k+1)
		}
	}
}

// speakAcross reports whether a stretch can lead from one node to another.
func speakAcross(a, b *node) bool {
	x, y := a.obj.Spec.Underlay.Address, b.obj.Spec.Underlay.Address
	return x.IsValid() && y.IsValid() && x.Is4() == y.Is4()
}

// isKept reports whether an instance is what the deployment wants, where it wants it.
func isKept(w *rollout, d *deployment, i *instance) bool {
	return current(w.world, i.obj).Spec.Draining.IsZero() && i.node != nil && !i.node.gone && !i.node.obj.Spec.Drain && d.suits(i)
}

// number is that of the instance's pair; 0: it has none.
func (i *instance) number() int {
	if i.obj.Spec.Pair == nil {
		return 0
	}
	return i.obj.Spec.Pair.Number
}

// join makes two instances a pair.
func join(w *rollout, a, b *instance, taken map[int]bool) {
	n := max(a.number(), b.number())
	if n == 0 || taken[n] {
		for n = 1; taken[n]; n++ {
		}
	}
	taken[n] = true
	for side, pair := range map[string][2]*instance{onpath.PairA: {a, b}, onpath.PairB: {b, a}} {
		next := *current(w.world, pair[0].obj)
		next.Spec.Pair = &onpath.Pair{Number: n, Side: side, Partner: pair[1].key.name}
		w.update(&next)
	}
	w.event(Event{About: onpath.KeyOf(a.obj), Node: a.node.name, Reason: "Paired",
		Message: fmt.Sprintf("is pair %d of deployment %s with %s on node %s", n, a.dep.name, b.key.name, b.node.name)})
}

// pairPlan is what the instance's node does for its pair. Without a partner it stays as the
// node was told last.
func pairPlan(w *world, i *instance) *onpath.Pair {
	p := i.partner
	if p == nil || !speakAcross(i.node, p.node) {
		if i.planned != nil {
			return i.planned.Pair
		}
		return nil
	}
	a, b := i, p
	if i.obj.Spec.Pair.Side == onpath.PairB {
		a, b = p, i
	}
	plan := &onpath.Pair{
		Number: i.obj.Spec.Pair.Number, Side: i.obj.Spec.Pair.Side, Partner: i.obj.Spec.Pair.Partner, Link: a.obj.Spec.Vport,
		Secret: hex.EncodeToString(derived(w, "pair "+a.obj.Metadata.UID+" "+b.obj.Metadata.UID)),
		Local:  i.node.obj.Spec.Underlay.Address, Remote: p.node.obj.Spec.Underlay.Address, MTU: i.stretchMTU(),
	}
	for _, x := range p.obj.Spec.Addresses {
		plan.Addresses = append(plan.Addresses, x.Addr())
	}
	return plan
}

// stretchMTU is the largest IP packet that the stretch to an instance's partner carries.
func (i *instance) stretchMTU() int {
	return onpath.StretchMTU(min(i.node.underlayMTU(), i.partner.node.underlayMTU()), i.node.obj.Spec.Underlay.Address)
}

// mostIn is the largest packet that may enter an instance: what it adds has to fit, too.
func (i *instance) mostIn() int {
	m := i.node.interfaceMTU(i.fn)
	if i.partner != nil {
		m = min(m, i.stretchMTU())
	}
	return m - i.fn.Overhead
}

// pairSides are the cloudlets of the chain's pair, in the order of its sides; nil: it has none.
func (c *chain) pairSides() []string {
	if c.obj.Spec.Pair() == nil {
		return nil
	}
	return c.obj.Spec.At.Cloudlets
}

// ledIn tells of new or changed chains whose traffic holds the stretch of their own pair:
// what a half sends its partner would be led into the pair again.
func ledIn(w *world, before *Snapshot) (out []string) {
	for _, c := range w.chains {
		sides := c.pairSides()
		if len(sides) != 2 || !c.differs(before) {
			continue
		}
		if a, b := between(w, c, sides[0], sides[1]); a != nil {
			out = append(out, fmt.Sprintf("chain %s selects the packets between the underlay addresses of nodes "+
				"%s (%s) and %s (%s), by which its pair speaks (udp/%d): write from and to so that they do not hold these addresses",
				c.key, a.name, a.obj.Spec.Underlay.Address, b.name, b.obj.Spec.Underlay.Address, onpath.StretchPort))
		}
	}
	return out
}

// between are two nodes of two cloudlets whose stretch the chain selects; nil: there are none.
func between(w *world, c *chain, from, to string) (a, b *node) {
	if w.cloudlets[from] == nil || w.cloudlets[to] == nil {
		return nil, nil
	}
	for _, a := range w.cloudlets[from].nodes {
		for _, b := range w.cloudlets[to].nodes {
			one, other := a.obj.Spec.Underlay.Address, b.obj.Spec.Underlay.Address
			if c.leadsIn(onpath.StretchMatch(one, other)) || c.leadsIn(onpath.StretchMatch(other, one)) {
				return a, b
			}
		}
	}
	return nil, nil
}

// leadsIn reports whether some packet of a match is the chain's, in either direction.
func (c *chain) leadsIn(m *onpath.Match) bool {
	meets := func(own onpath.Match) bool { return own.Overlaps(m) }
	return slices.ContainsFunc(c.forward, meets) || slices.ContainsFunc(c.reverse, meets)
}
