package near

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
)

// Directory is where the names of services lead, as of one moment. It does not change.
type Directory struct {
	services  map[string]*onpath.Service // by name
	parents   map[string]bool            // names of nothing, below which there are services
	zones     map[string]bool
	cloudlets Map
	orders    *sync.Map // cloudlets by distance from each, made when they are first asked for
	homes     map[netip.Prefix]string
	bits      []int // of homes, the longest first
	measured  func(netip.Prefix) map[string]time.Duration
}

// NewDirectory makes a directory. measured, if not nil, are the round trips between
// cloudlets and the clients of a prefix, as far as they are known; it is asked with each
// question of who is in no cloudlet's prefixes.
func NewDirectory(services []*onpath.Service, tenants []*onpath.Tenant, m Map,
	measured func(netip.Prefix) map[string]time.Duration) *Directory {
	d := &Directory{services: map[string]*onpath.Service{}, parents: map[string]bool{}, zones: map[string]bool{}, cloudlets: m,
		orders: &sync.Map{}, homes: map[netip.Prefix]string{}, measured: measured}
	for _, t := range tenants {
		for _, z := range t.Spec.Zones {
			d.zones[z] = true
		}
	}
	for _, s := range services {
		if n := s.Spec.Name; n != "" && (d.services[n] == nil || s.Metadata.Created.Before(d.services[n].Metadata.Created)) {
			d.services[n] = s
		}
	}
	shortest := func(a, b string) int { return cmp.Or(len(a)-len(b), cmp.Compare(a, b)) }
	for _, n := range slices.SortedFunc(maps.Keys(d.services), shortest) { // one in another's zone needs none
		if d.zoneOf(n) == "" {
			d.zones[n] = true
		}
		for _, above, ok := strings.Cut(n, "."); ok; _, above, ok = strings.Cut(above, ".") {
			d.parents[above] = true
		}
	}
	bits := map[int]bool{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		for _, p := range m[name].Prefixes {
			if _, ok := d.homes[p.Masked()]; !ok {
				d.homes[p.Masked()] = name
				bits[p.Bits()] = true
			}
		}
	}
	d.bits = slices.Sorted(maps.Keys(bits))
	slices.Reverse(d.bits)
	return d
}

// zoneOf is the smallest zone that a name lies in; "": none of ours.
func (d *Directory) zoneOf(name string) string {
	for more := true; more; _, name, more = strings.Cut(name, ".") {
		if d.zones[name] {
			return name
		}
	}
	return ""
}

// Answer is what a name leads to.
type Answer struct {
	Zone      string // "": nobody here answers for the name
	Exists    bool
	Addresses []netip.Addr // of one cloudlet; none where no instance is ready
	Cloudlet  string
}

// Look finds what a name in lower case, without a dot at its end, leads clients with
// addresses of a prefix to. Where nothing is known of them, asker counts: the resolver
// that asks for them.
func (d *Directory) Look(name string, client netip.Prefix, asker netip.Addr) (a Answer) {
	if a.Zone = d.zoneOf(name); a.Zone == "" {
		return a
	}
	if s := d.services[name]; s != nil {
		a.Exists = true
		a.Cloudlet, a.Addresses = d.nearest(s, client, netip.PrefixFrom(asker, asker.BitLen()))
		return a
	}
	cloudlet, rest, _ := strings.Cut(name, ".")
	if s := d.services[rest]; s != nil {
		if p := s.Status.At(cloudlet); p != nil {
			a.Exists = true
			if p.Serves {
				a.Cloudlet, a.Addresses = cloudlet, p.Addresses
			}
			return a
		}
	}
	a.Exists = name == a.Zone || d.parents[name]
	return a
}

// nearest is the cloudlet in which a service answers that is nearest to the first of some
// of whom something is known.
func (d *Directory) nearest(s *onpath.Service, who ...netip.Prefix) (string, []netip.Addr) {
	home := ""
	for _, p := range who {
		if home = d.home(p); home != "" {
			break
		}
		if d.measured == nil {
			continue
		}
		if name, at := closest(s, d.measured(p)); at != nil {
			return name, at.Addresses
		}
	}
	for _, name := range d.order(home) {
		if p := s.Status.At(name); p != nil && p.Serves {
			return name, p.Addresses
		}
	}
	return "", nil
}

// order are the cloudlets by their distance from one.
func (d *Directory) order(home string) []string {
	list, ok := d.orders.Load(home)
	if !ok {
		list = d.cloudlets.Order(home)
		d.orders.Store(home, list)
	}
	return list.([]string)
}

// closest is the cloudlet with the least round trip of those where a service answers.
func closest(s *onpath.Service, rtts map[string]time.Duration) (best string, at *onpath.ServicePlace) {
	for i := range s.Status.Cloudlets {
		p := &s.Status.Cloudlets[i]
		if rtt := rtts[p.Cloudlet]; p.Serves && rtt > 0 && (at == nil || rtt < rtts[best]) {
			best, at = p.Cloudlet, p
		}
	}
	return best, at
}

// Knows reports whether a cloudlet says that a client is near it.
func (d *Directory) Knows(a netip.Addr) bool {
	return d == nil || d.home(netip.PrefixFrom(a, a.BitLen())) != ""
}

// home is Map.Home, without looking at each cloudlet.
func (d *Directory) home(client netip.Prefix) string {
	for _, bits := range d.bits {
		if bits > client.Bits() || bits > client.Addr().BitLen() {
			continue
		}
		if p, err := client.Addr().Prefix(bits); err == nil {
			if name, ok := d.homes[p]; ok {
				return name
			}
		}
	}
	return ""
}
