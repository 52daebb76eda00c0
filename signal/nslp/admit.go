package nslp

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/signal/gist"
)

// Ground is what a node decides from.
type Ground struct {
	Plan     *onpath.LeasePlan
	Datapath *onpath.DatapathConfig // what chains select
	Capacity onpath.Resources
	Leases   []onpath.LocalLease
	Blocks   []string // that are offered here
	Node     string
	// Flow is that along which the request came: it says who the user is.
	Flow gist.MRI
}

// maxProved is how many addresses a password may prove.
const maxProved = 4

// Publisher is who has signed a request: a tenant, or, where the node allows it, anyone.
func (g *Ground) Publisher(key []byte) (p onpath.Publisher, known bool, r *Refusal) {
	if g.Plan == nil {
		return p, false, &Refusal{"NoLeases", "the node gives no leases any more"}
	}
	for _, p := range g.Plan.Publishers {
		if p.Has(key) {
			return p, true, nil
		}
	}
	if g.Plan.Spec.Publishers != onpath.PublisherAny {
		return p, false, &Refusal{"UnknownPublisher", "the key is no tenant's, and others may not ask here"}
	}
	return onpath.Publisher{Tenant: "key-" + hex.EncodeToString(key[:8]), MaxFlows: onpath.DefaultMaxFlows / 16}, false, nil
}

// Find is the index of a publisher's lease of a module; -1: there is none.
func (g *Ground) Find(publisher, module string) int {
	return slices.IndexFunc(g.Leases, func(l onpath.LocalLease) bool { return l.Publisher == publisher && l.Module == module })
}

// Admit decides on a SETUP as far as that can be done without fetching anything: the lease
// that it asks for, without its code. Where the request repeats a lease, its code holds.
func (g *Ground) Admit(now time.Time, m *Message) (l onpath.LocalLease, r *Refusal) {
	p, known, r := g.Publisher(m.Key)
	if r != nil {
		return l, r
	}
	l = onpath.LocalLease{MaxFlows: p.MaxFlows, LeaseSpec: onpath.LeaseSpec{
		Node: g.Node, Publisher: p.Tenant, Known: known, Key: m.Key, User: m.User,
		Module: m.Module, URL: m.URL, SHA256: hex.EncodeToString(m.Hash),
		Protocol: m.FilterProtocol, Port: m.FilterPort, Properties: m.Properties,
		Serves: m.Ports(), ServesOnly: len(m.Ports()) > 0 && !m.selects(),
		Fetch: m.Fetch,
		Since: now, Until: now.Add(min(m.TTL, onpath.MaxLeaseTTL)),
	}}
	l.Name = leaseName(&l.LeaseSpec)
	for _, check := range []func(*onpath.LocalLease, *Message, onpath.Publisher) *Refusal{
		g.checkModule, g.checkServer, g.checkFilter, g.checkRoom, g.checkChains,
	} {
		if r := check(&l, m, p); r != nil {
			return l, r
		}
	}
	return l, nil
}

// leaseName is a name for the object, and for the module in its engine.
func leaseName(l *onpath.LeaseSpec) string {
	words := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(l.Module)), "-")
	if len(words) > 30 {
		words = strings.Trim(words[len(words)-30:], "-")
	}
	sum := HashOf([]byte(l.Node + "\x00" + l.Publisher + "\x00" + l.Module))
	// Eight bytes: publishers choose the words, and no lease may take another's name.
	return strings.Trim(words+"-"+hex.EncodeToString(sum[:8]), "-")
}

func (g *Ground) checkModule(_ *onpath.LocalLease, m *Message, _ onpath.Publisher) *Refusal {
	for _, d := range m.Dependencies {
		if !slices.Contains(g.Blocks, d) {
			return &Refusal{"MissingBlock", fmt.Sprintf("the building block %s is not offered to leased modules here", d)}
		}
	}
	if len(m.Hash) != 32 || !strings.HasPrefix(m.URL, "http://") && !strings.HasPrefix(m.URL, "https://") {
		return &Refusal{"NoModule", "a module is named by the SHA-256 of its code and an http URL"}
	}
	for _, s := range m.Properties {
		if k, _, ok := strings.Cut(s, "="); !ok || k == "" {
			return &Refusal{"BadProperty", fmt.Sprintf("property %q is not of the form name=value", s)}
		}
	}
	if len(m.Fetch) > maxFetch {
		return &Refusal{"BadHost", fmt.Sprintf("the request names %d hosts to fetch from; at most %d", len(m.Fetch), maxFetch)}
	}
	for _, h := range m.Fetch {
		if _, ok := onpath.FetchHost(h); !ok {
			return &Refusal{"BadHost", fmt.Sprintf("%q is no host to fetch from", h)}
		}
	}
	return nil
}

// maxFetch is how many hosts a request may name to fetch from.
const maxFetch = 8

// checkServer has the lease serve only where the operator lets its publisher.
func (g *Ground) checkServer(l *onpath.LocalLease, _ *Message, _ onpath.Publisher) *Refusal {
	switch {
	case len(l.Serves) == 0:
		return nil
	case !l.Known:
		return &Refusal{"NoServer", "without an account a publisher's modules serve nowhere"}
	case g.Plan.Spec.Servers == 0:
		return &Refusal{"NoServer", "the operator lends no addresses to serve at here (leases.servers)"}
	}
	others := 0
	for i := range g.Leases {
		o := &g.Leases[i]
		if o.Publisher != l.Publisher || o.Module == l.Module {
			continue
		}
		others += len(o.Serves)
		for _, p := range l.Serves {
			if slices.Contains(o.Serves, p) {
				return &Refusal{"PortTaken", fmt.Sprintf("the publisher's module %s serves at %s already", o.Module, p)}
			}
		}
	}
	for _, p := range l.Serves {
		if !g.offers(p.Port) {
			return &Refusal{"NoServer", fmt.Sprintf("port %d is not among those that may be asked for here", p.Port)}
		}
	}
	if others+len(l.Serves) > onpath.MaxServedPorts {
		return &Refusal{"NoServer", fmt.Sprintf("the modules of one publisher serve at most %d ports", onpath.MaxServedPorts)}
	}
	return nil
}

// checkFilter has the lease take what the publisher may select, and nothing else.
func (g *Ground) checkFilter(l *onpath.LocalLease, m *Message, p onpath.Publisher) *Refusal {
	outside := func(format string, args ...any) *Refusal {
		return &Refusal{"FilterOutside", fmt.Sprintf(format, args...)}
	}
	if l.ServesOnly {
		return nil
	}
	if !g.offers(m.FilterPort) {
		return outside("port %d is not among those that may be asked for here", m.FilterPort)
	}
	if m.FilterPort != 0 && m.FilterProtocol != "udp" && m.FilterProtocol != "tcp" {
		return outside("a port says nothing without protocol udp or tcp")
	}
	to := m.FilterTo
	if len(to) == 0 {
		for _, a := range p.Addresses {
			to = append(to, a.Prefix)
		}
	}
	if len(to) == 0 {
		return outside("the request does not say to which addresses the packets go")
	}
	for _, t := range to {
		l.To = append(l.To, onpath.Prefix{Prefix: t})
		switch {
		case l.Known && !mayHave(&p, l.To[len(l.To)-1:]):
			return outside("the publisher may not select traffic to %s", onpath.Prefix{Prefix: t})
		case !l.Known && (!t.IsSingleIP() || len(to) > maxProved):
			return outside("without an account a request is for at most %d single addresses, each proved by the password", maxProved)
		}
	}
	if !l.Known && m.Password == "" {
		return &Refusal{"WrongPassword", "the request has no password that proves its addresses"}
	}
	return nil
}

// offers reports whether a port may be asked for here.
func (g *Ground) offers(port uint16) bool {
	return len(g.Plan.Spec.Ports) == 0 || slices.ContainsFunc(g.Plan.Spec.Ports, func(r onpath.PortRange) bool {
		return port != 0 && r.First <= port && port <= r.Last
	})
}

// mayHave reports whether a tenant may select the traffic of prefixes. Publishers without
// addresses are tenants that may select all.
func mayHave(p *onpath.Publisher, to []onpath.Prefix) bool {
	return len(p.Addresses) == 0 || !slices.ContainsFunc(to, func(t onpath.Prefix) bool {
		return !slices.ContainsFunc(p.Addresses, func(a onpath.Prefix) bool { return within(t.Prefix, a.Prefix) })
	})
}

func within(p, in netip.Prefix) bool { return in.Bits() <= p.Bits() && in.Overlaps(p) }

func (g *Ground) checkChains(l *onpath.LocalLease, _ *Message, _ onpath.Publisher) *Refusal {
	all := l.Served()
	if !l.ServesOnly {
		all = append(all, g.filtered(l)...)
	}
	for _, m := range all {
		if chain, ok := g.Datapath.Selects(&m); ok {
			return Refusal{"SelectedByChain", "the packets are taken by another's chain already"}.about(chain, l)
		}
	}
	return nil
}

// filtered are the packets that the lease's module is given.
func (g *Ground) filtered(l *onpath.LocalLease) []onpath.Match {
	forward, reversed := l.Forward(), l.Reversed()
	// Chains go before leases. What counts is the user's traffic: of packets between the
	// publisher's addresses and another's some chain may well take all.
	if u := g.user(l); u.IsValid() {
		only := []netip.Prefix{netip.PrefixFrom(u, u.BitLen())}
		forward.Src, reversed.Dst = only, only
	}
	return []onpath.Match{forward, reversed}
}

// user is the end of the flow that is not the publisher's; invalid if that cannot be told.
func (g *Ground) user(l *onpath.LocalLease) netip.Addr {
	own := func(a netip.Addr) bool {
		return slices.ContainsFunc(l.To, func(p onpath.Prefix) bool { return p.Contains(a) })
	}
	switch from, to := own(g.Flow.Source), own(g.Flow.Destination); {
	case from && !to:
		return g.Flow.Destination
	case to && !from:
		return g.Flow.Source
	}
	return netip.Addr{}
}

// about names the chain to its own tenant.
func (r Refusal) about(chain string, l *onpath.LocalLease) *Refusal {
	if l.Known && strings.HasPrefix(chain, l.Publisher+"/") {
		r.Words = "the packets are taken by chain " + chain + " already"
	}
	return &r
}

// checkRoom gives the lease its place, within the node's share. Slots with addresses go to
// tenants first: a publisher's engine stays where it is when a module comes that serves.
func (g *Ground) checkRoom(l *onpath.LocalLease, _ *Message, _ onpath.Publisher) *Refusal {
	taken := map[onpath.PathID]bool{}
	modules := 1
	others := slices.Clone(g.Leases)
	if at := g.Find(l.Publisher, l.Module); at >= 0 {
		had := &g.Leases[at]
		l.Name, l.Since = had.Name, had.Since
		if had.SHA256 == l.SHA256 {
			l.Code = had.Code
		}
		l.Slot = g.Plan.Now(had.Slot)
		others = slices.Delete(others, at, at+1)
	}
	for i := range others {
		o := &others[i]
		taken[o.Slot.Path] = true
		if o.Publisher == l.Publisher {
			l.Slot = g.Plan.Now(o.Slot)
			modules++
		}
	}
	all, strangers := g.fit(append(others, *l))
	switch {
	case len(others) < len(g.Leases) && len(l.Serves) == 0: // it has its share already
	case !all:
		return &Refusal{"NoShare", "leases have all of the node's share that the operator gives them"}
	case !l.Known && !strangers:
		return &Refusal{"NoShare", "publishers without an account have all of the node's share that the operator gives them"}
	case modules > onpath.MaxModules:
		return &Refusal{"NoShare", fmt.Sprintf("an engine runs at most %d modules", onpath.MaxModules)}
	}
	if l.Slot.Path == 0 {
		free := func(s onpath.LeaseSlot) bool { return !taken[s.Path] && (len(l.Serves) == 0 || len(s.Serves) > 0) }
		at := slices.IndexFunc(g.Plan.Slots, func(s onpath.LeaseSlot) bool { return free(s) && l.Known == (len(s.Serves) > 0) })
		if at < 0 {
			at = slices.IndexFunc(g.Plan.Slots, free)
		}
		switch {
		case at >= 0:
			l.Slot = g.Plan.Slots[at]
		case len(l.Serves) > 0:
			return &Refusal{"NoServer", "all addresses to serve at are other publishers', or the operator's pools have none left"}
		default:
			return &Refusal{"NoShare", "as many publishers as there may be have leases here"}
		}
	}
	if len(l.Serves) > 0 && len(l.Slot.Serves) == 0 {
		return &Refusal{"NoServer", "the publisher's engine here got no address to serve at; remove its modules and ask again"}
	}
	if len(l.Serves) > 0 {
		l.Addresses = l.Slot.Serves
	}
	return nil
}

// fit reports whether leases are within the node's share, and those of publishers without an
// account within their tenth of it.
func (g *Ground) fit(leases []onpath.LocalLease) (all, strangers bool) {
	var used, others onpath.Resources
	for i := range leases {
		used = used.Add(leases[i].Resources())
		if !leases[i].Known {
			others = others.Add(leases[i].Resources())
		}
	}
	share := float64(g.Plan.Spec.Share)
	return fits(used, g.Capacity, share), fits(others, g.Capacity, share/10)
}

func fits(r, capacity onpath.Resources, share float64) bool {
	return float64(r.CPU) <= float64(capacity.CPU)*share && float64(r.Memory) <= float64(capacity.Memory)*share
}

// Keep is which leases a new plan still allows. Where its share is too small for all, those
// that came last go.
func (g *Ground) Keep() (keep, gone []onpath.LocalLease) {
	for _, l := range g.Leases {
		ok := g.allows(&l)
		if ok && g.Capacity.CPU > 0 && g.Plan.Spec.Share > 0 { // else not all is known yet
			all, strangers := g.fit(append(slices.Clone(keep), l))
			ok = all && (l.Known || strangers)
		}
		if ok {
			keep = append(keep, l)
		} else {
			gone = append(gone, l)
		}
	}
	return keep, gone
}

// allows reports whether the plan still gives what a lease has.
func (g *Ground) allows(l *onpath.LocalLease) bool {
	switch {
	case g.Plan == nil || !l.ServesOnly && !g.offers(l.Port):
		return false
	case slices.ContainsFunc(l.Serves, func(p onpath.ServedPort) bool { return !g.offers(p.Port) }):
		return false
	case len(l.Serves) > 0 && !slices.Equal(l.Addresses, g.Plan.Now(l.Slot).Serves):
		return false
	case !slices.ContainsFunc(g.Plan.Slots, func(s onpath.LeaseSlot) bool { return s.Path == l.Slot.Path }):
		return false
	case !l.Known:
		return g.Plan.Spec.Publishers == onpath.PublisherAny
	}
	return slices.ContainsFunc(g.Plan.Publishers, func(p onpath.Publisher) bool {
		// Without a key it is a lease of an agent that kept none.
		return p.Tenant == l.Publisher && (len(l.Key) == 0 || p.Has(l.Key)) && mayHave(&p, l.To)
	})
}

// ServersOf says for an answer where a lease's module serves.
func ServersOf(l *onpath.LocalLease) (out []string) {
	for _, s := range l.Servers() {
		out = append(out, l.Module+" "+s)
	}
	return out
}

// Report is what a node says of itself to a publisher.
func (g *Ground) Report(now time.Time, publisher string, state func(*onpath.LocalLease) string) Entry {
	e := Entry{State: Absent, Blocks: g.Blocks, Policy: []string{
		"share=" + g.Plan.Spec.Share.String(), "publishers=" + string(g.Plan.Spec.Publishers),
		fmt.Sprintf("dry-run=%t", g.Plan.Spec.DryRun),
	}}
	for i := range g.Leases {
		if l := &g.Leases[i]; l.Publisher == publisher {
			e.State = Present
			e.Modules = append(e.Modules, fmt.Sprintf("%s %s %d", l.Module, state(l), int(l.Until.Sub(now).Seconds())))
			e.Servers = append(e.Servers, ServersOf(l)...)
		}
	}
	return e
}
