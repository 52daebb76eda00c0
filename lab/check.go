package lab

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/onpath/onpath"
	"go.yaml.in/yaml/v3"
)

// Bounds of a topology, far above what one machine can run.
const (
	maxNodes = 500
	maxLinks = 2000
)

// check looks at what single values cannot show: references, duplicates,
// addresses. It also names interfaces that have no name.
func (p *parser) check() {
	t := p.topology
	switch {
	case len(t.Hosts) == 0:
		p.fail(nil, "hosts", "give it at least one", "there is no host")
	case len(t.Hosts)+len(t.Switches) > maxNodes:
		p.fail(nil, "hosts", "", "%d hosts and switches are too many; at most %d", len(t.Hosts)+len(t.Switches), maxNodes)
	case len(t.Links) > maxLinks:
		p.fail(nil, "links", "", "%d links are too many; at most %d", len(t.Links), maxLinks)
	}
	for _, s := range t.Switches {
		if t.Host(s.Name) != nil {
			p.fail(p.placeOf[s], "switches", "rename one", "a host is called %s too", s.Name)
		}
	}
	if len(p.errs) > 0 {
		return
	}
	linked := map[string]*Link{}
	for i, l := range t.Links {
		p.checkLink(i, l, linked)
	}
	p.nameInterfaces(linked)
	if len(p.errs) > 0 {
		return
	}
	p.checkInterfaces(linked)
	p.checkAddresses()
	for _, h := range t.Hosts {
		p.checkRoutes(h)
	}
}

func (p *parser) checkLink(i int, l *Link, linked map[string]*Link) {
	t, at, field := p.topology, p.placeOf[l], linkField(i)
	for _, e := range []End{l.A, l.B} {
		host, sw := t.Host(e.Node), t.Switch(e.Node)
		switch {
		case host == nil && sw == nil:
			p.fail(at, field, nearestNode(t, e.Node), "there is no host or switch %s", quoted(e.Node))
		case sw != nil && e.Interface != "":
			p.fail(at, field, "write "+e.Node, "%s is a switch, whose ports have no names", e.Node)
		case sw != nil && sw.MTU > l.MTU:
			p.fail(at, field, "give the link that mtu too", "its mtu of %d is less than the %d of switch %s", l.MTU, sw.MTU, sw.Name)
		case host != nil && e.Interface != "":
			if other := linked[e.String()]; other != nil {
				p.fail(at, field, "use another interface", "%s is on another link already, in line %d", e, p.placeOf[other].Line)
			}
			linked[e.String()] = l
		}
	}
	if l.A.Node == l.B.Node {
		p.fail(at, field, "", "both ends are at %s", l.A.Node)
	}
}

func nearestNode(t *Topology, name string) string {
	var names []string
	for _, h := range t.Hosts {
		names = append(names, h.Name)
	}
	for _, s := range t.Switches {
		names = append(names, s.Name)
	}
	if near := onpath.Nearest(name, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "declare it below hosts or switches"
}

// nameInterfaces gives ends of hosts without a name the first free ethN.
func (p *parser) nameInterfaces(linked map[string]*Link) {
	for _, l := range p.topology.Links {
		for _, e := range []*End{&l.A, &l.B} {
			if e.Interface != "" || p.topology.Host(e.Node) == nil {
				continue
			}
			for n := 0; ; n++ {
				e.Interface = "eth" + strconv.Itoa(n)
				if linked[e.String()] == nil {
					linked[e.String()] = l
					break
				}
			}
		}
	}
}

// checkInterfaces refuses addresses on interfaces without a link, and puts
// each host's interfaces into the order of the links.
func (p *parser) checkInterfaces(linked map[string]*Link) {
	t := p.topology
	for _, h := range t.Hosts {
		for _, f := range h.Interfaces {
			l := linked[h.Name+":"+f.Name]
			if f.Name == "lo" && f.MAC != "" {
				p.fail(p.placeOf[f], "hosts."+h.Name+".interfaces.lo", "take it out", "lo has no Ethernet address")
			}
			if f.Name != "lo" && l == nil {
				p.fail(p.placeOf[f], "hosts."+h.Name+".interfaces", "add a link, or take it out", "interface %s is on no link", f.Name)
				continue
			}
			if l != nil && l.MTU < minMTUv6 && slices.ContainsFunc(f.Addresses, func(a netip.Prefix) bool { return a.Addr().Is6() }) {
				p.fail(p.placeOf[f], "hosts."+h.Name+".interfaces."+f.Name, "", "IPv6 needs an mtu of %d, and the link has %d", minMTUv6, l.MTU)
			}
		}
		var ordered []*Interface
		for _, l := range t.Links {
			for _, e := range []End{l.A, l.B} {
				if e.Node != h.Name {
					continue
				}
				f := h.Interface(e.Interface)
				if f == nil {
					f = &Interface{Name: e.Interface}
				}
				ordered = append(ordered, f)
			}
		}
		if lo := h.Interface("lo"); lo != nil {
			ordered = append(ordered, lo)
		}
		h.Interfaces = ordered
	}
}

// checkAddresses refuses one address on two interfaces of a segment or host.
// The same address in two places that do not see each other is allowed: tests
// of anycast need it.
func (p *parser) checkAddresses() {
	for _, s := range segments(p.topology) {
		seen := map[netip.Addr]string{}
		for _, a := range s.attached {
			for _, addr := range a.face.Addresses {
				who := a.host.Name + ":" + a.face.Name
				if other, twice := seen[addr.Addr()]; twice {
					p.fail(p.interfacePlace(a.host, a.face), "hosts."+a.host.Name+".interfaces."+a.face.Name, "give one another address",
						"%s is the address of %s too, on the same segment", addr.Addr(), other)
				}
				seen[addr.Addr()] = who
			}
		}
	}
	for _, h := range p.topology.Hosts {
		seen := map[netip.Addr]string{}
		for _, f := range h.Interfaces {
			for _, a := range f.Addresses {
				if other, twice := seen[a.Addr()]; twice && other != f.Name {
					p.fail(p.interfacePlace(h, f), "hosts."+h.Name+".interfaces."+f.Name, "give one another address", "%s is the address of %s too", a.Addr(), other)
				}
				seen[a.Addr()] = f.Name
			}
		}
	}
}

func (p *parser) interfacePlace(h *Host, f *Interface) *yaml.Node {
	if n := p.placeOf[f]; n != nil {
		return n
	}
	return p.placeOf[h]
}

// checkRoutes refuses routes that the kernel would refuse.
func (p *parser) checkRoutes(h *Host) {
	seen := map[netip.Prefix]bool{}
	for i, r := range h.Routes {
		at, field := p.placeOf[r], fmt.Sprintf("hosts.%s.routes[%d]", h.Name, i)
		if r.Device != "" && h.Interface(r.Device) == nil {
			p.fail(at, field, "", "%s has no interface %s", h.Name, quoted(r.Device))
		}
		if seen[r.To] {
			p.fail(at, field, "take one out", "there is another route to %s", r.To)
		}
		seen[r.To] = true
		if !r.Via.IsValid() || r.Device != "" {
			continue
		}
		if _, ok := h.connected(r.Via); !ok {
			p.fail(at, field, "name the device, or give an interface an address of that network", "no interface of %s is in the network of %s", h.Name, r.Via)
		}
	}
}

// connected is the interface of h that reaches addr without a router.
func (h *Host) connected(addr netip.Addr) (*Interface, bool) {
	for _, f := range h.Interfaces {
		for _, a := range f.Addresses {
			if f.Name != "lo" && a.Masked().Contains(addr) && a.Addr() != addr {
				return f, true
			}
		}
	}
	return nil, false
}
