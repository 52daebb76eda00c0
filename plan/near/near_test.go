package near

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func prefixes(list ...string) (out []onpath.Prefix) {
	for _, s := range list {
		out = append(out, onpath.Prefix{Prefix: netip.MustParsePrefix(s)})
	}
	return out
}

// places are Frankfurt, Berlin and Lisbon.
func places() Map {
	return Map{
		"fra": {Location: onpath.Location{Latitude: 50.1, Longitude: 8.7}, Prefixes: prefixes("10.1.0.0/16", "2001:db8:1::/48")},
		"ber": {Location: onpath.Location{Latitude: 52.5, Longitude: 13.4}, Prefixes: prefixes("10.2.0.0/16", "10.1.7.0/24")},
		"lis": {Location: onpath.Location{Latitude: 38.7, Longitude: -9.1}, Prefixes: prefixes("10.3.0.0/16")},
	}
}

func TestOrder(t *testing.T) {
	m := places()
	for client, want := range map[string]string{"10.1.0.9/32": "fra", "10.1.7.9/32": "ber", "10.1.7.0/24": "ber", "10.1.0.0/16": "fra",
		"10.0.0.0/8": "", "10.9.0.0/16": "", "2001:db8:1:2::/64": "fra"} {
		if home := m.Home(netip.MustParsePrefix(client)); home != want {
			t.Errorf("%s is near %q, want %q", client, home, want)
		}
	}
	if got := fmt.Sprint(m.Order("fra")); got != "[fra ber lis]" {
		t.Errorf("by location: %s", got)
	}
	far := m["fra"]
	far.RTT = map[string]time.Duration{"ber": 90 * time.Millisecond, "lis": 30 * time.Millisecond}
	m["fra"] = far
	if got := fmt.Sprint(m.Order("fra"), m.Order("ber")); got != "[fra lis ber] [ber lis fra]" {
		t.Errorf("by what is measured: %s", got)
	}
}

func service(name string, serves ...string) *onpath.Service {
	s := &onpath.Service{Metadata: onpath.Metadata{Name: name}, Spec: onpath.ServiceSpec{Name: name}}
	for i, n := range []string{"ber", "fra", "lis"} {
		p := onpath.ServicePlace{Cloudlet: n, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i + 1)})}}
		for _, x := range serves {
			p.Serves = p.Serves || x == n
		}
		s.Status.Cloudlets = append(s.Status.Cloudlets, p)
	}
	return s
}

func TestLook(t *testing.T) {
	measured := func(p netip.Prefix) map[string]time.Duration {
		if p.Addr() == netip.MustParseAddr("192.0.2.1") {
			return map[string]time.Duration{"lis": time.Millisecond, "fra": 2 * time.Millisecond}
		}
		return nil
	}
	tenants := []*onpath.Tenant{{Spec: onpath.TenantSpec{Zones: []string{"acme.example"}}}}
	d := func(serves ...string) *Directory {
		return NewDirectory([]*onpath.Service{service("cdn.eu.acme.example", serves...), service("other.example", serves...)}, tenants, places(), measured)
	}
	all := d("fra", "ber", "lis")
	for _, c := range []struct {
		d                  *Directory
		name, client, want string // want: zone, existence, cloudlet
	}{
		{all, "cdn.eu.acme.example", "10.1.0.9/32", "acme.example true fra"},
		{all, "cdn.eu.acme.example", "10.2.0.0/24", "acme.example true ber"},
		{all, "cdn.eu.acme.example", "2001:db8:1::9/128", "acme.example true fra"},
		{d("ber", "lis"), "cdn.eu.acme.example", "10.1.0.9/32", "acme.example true ber"},
		{d("lis"), "cdn.eu.acme.example", "10.1.0.9/32", "acme.example true lis"},
		{d(), "cdn.eu.acme.example", "10.1.0.9/32", "acme.example true "},
		{all, "cdn.eu.acme.example", "192.0.2.1/32", "acme.example true lis"},
		{d("fra"), "cdn.eu.acme.example", "192.0.2.1/32", "acme.example true fra"},
		{all, "cdn.eu.acme.example", "192.0.2.77/32", "acme.example true ber"}, // nothing is known: by name
		{all, "lis.cdn.eu.acme.example", "10.1.0.9/32", "acme.example true lis"},
		{d("fra"), "lis.cdn.eu.acme.example", "10.1.0.9/32", "acme.example true "},
		{all, "rom.cdn.eu.acme.example", "10.1.0.9/32", "acme.example false "},
		{all, "eu.acme.example", "10.1.0.9/32", "acme.example true "},
		{all, "acme.example", "10.1.0.9/32", "acme.example true "},
		{all, "no.acme.example", "10.1.0.9/32", "acme.example false "},
		{all, "other.example", "10.3.0.9/32", "other.example true lis"},
		{all, "example", "10.1.0.9/32", " false "},
		{all, "notacme.example", "10.1.0.9/32", " false "},
	} {
		client := netip.MustParsePrefix(c.client)
		a := c.d.Look(c.name, client, client.Addr())
		if got := fmt.Sprintf("%s %t %s", a.Zone, a.Exists, a.Cloudlet); got != c.want {
			t.Errorf("%s for %s: %q, want %q", c.name, c.client, got, c.want)
		}
		if (a.Cloudlet != "") != (len(a.Addresses) > 0) {
			t.Errorf("%s for %s: %+v", c.name, c.client, a)
		}
	}
}

// TestLookForOthers: a resolver that asks for others counts where nothing is known of them.
func TestLookForOthers(t *testing.T) {
	measured := func(p netip.Prefix) map[string]time.Duration {
		return map[string]map[string]time.Duration{
			"192.0.2.0/24": {"lis": time.Millisecond}, "198.51.100.1/32": {"fra": time.Millisecond},
		}[p.String()]
	}
	d := NewDirectory([]*onpath.Service{service("cdn.example.net", "fra", "ber", "lis")}, nil, places(), measured)
	for _, c := range []struct{ client, asker, want string }{
		{"10.3.0.0/24", "198.51.100.1", "lis"},    // by prefix
		{"192.0.2.0/24", "198.51.100.1", "lis"},   // measured
		{"203.0.113.0/24", "198.51.100.1", "fra"}, // the resolver is measured
		{"203.0.113.0/24", "10.3.0.1", "lis"},     // the resolver's prefix
		{"203.0.113.0/24", "198.51.100.2", "ber"}, // nothing is known of either
	} {
		if a := d.Look("cdn.example.net", netip.MustParsePrefix(c.client), netip.MustParseAddr(c.asker)); a.Cloudlet != c.want {
			t.Errorf("%s asks for %s: %s, want %s", c.asker, c.client, a.Cloudlet, c.want)
		}
	}
}

// TestZones: the smallest zone counts; names without a zone are their own, one for those
// that lie in another.
func TestZones(t *testing.T) {
	tenants := []*onpath.Tenant{{Spec: onpath.TenantSpec{Zones: []string{"acme.example", "eu.acme.example"}}}}
	var services []*onpath.Service
	for _, n := range []string{"a.b.c.test", "b.c.test", "x.b.c.test", "cdn.eu.acme.example"} {
		services = append(services, service(n))
	}
	d := NewDirectory(services, tenants, places(), nil)
	for name, want := range map[string]string{"a.b.c.test": "b.c.test", "b.c.test": "b.c.test", "c.test": "", "": "", "xb.c.test": "",
		"cdn.eu.acme.example": "eu.acme.example", "us.acme.example": "acme.example", "example": ""} {
		if got := d.zoneOf(name); got != want {
			t.Errorf("%q lies in %q, want %q", name, got, want)
		}
	}
}
