package names

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/near"
)

// TestWhoIsMeasured: one question has nobody measured, since its source may be made up, and
// however many ask, what is kept of them is bounded.
func TestWhoIsMeasured(t *testing.T) {
	n, now := New(nil, time.Now), time.Unix(1e9, 0)
	k := netip.MustParsePrefix("192.0.2.0/24")
	if n.lasting(k, now) || n.lasting(k, now.Add(clientsAsk/2)) {
		t.Error("it is measured at once")
	}
	now = now.Add(clientsAsk)
	if !n.lasting(k, now) {
		t.Error("it asks for some seconds, and is not measured")
	}
	n.keep(k, clientRTTs{first: now, at: now})
	if n.lasting(k, now) || !n.lasting(k, now.Add(clientsLast)) {
		t.Errorf("what was measured does not last for %s", clientsLast)
	}
	for i := range 3 * mostClients {
		n.lasting(netip.PrefixFrom(netip.AddrFrom4([4]byte{1, byte(i >> 8), byte(i), 0}), 24), now)
	}
	if kept := len(n.young) + len(n.old); kept > 2*mostClients {
		t.Errorf("%d networks are kept", kept)
	}
}

// TestDirectoryKept: a directory is made anew when what it says may have changed, and else not.
func TestDirectoryKept(t *testing.T) {
	n := New(nil, time.Now)
	of := func(k onpath.Kind) onpath.TypeMeta { return onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: k} }
	o := &onpath.Service{TypeMeta: of(onpath.KindService), Metadata: onpath.Metadata{Name: "cdn"}, Spec: onpath.ServiceSpec{Name: "cdn.example.net"}}
	chain := &onpath.Chain{TypeMeta: of(onpath.KindChain), Metadata: onpath.Metadata{Name: "web"}}
	tenant := &onpath.Tenant{TypeMeta: of(onpath.KindTenant), Metadata: onpath.Metadata{Name: "acme"},
		Spec: onpath.TenantSpec{Zones: []string{"acme.example"}}}
	objects := map[onpath.Key]onpath.Object{onpath.KeyOf(o): o, onpath.KeyOf(chain): chain, onpath.KeyOf(tenant): tenant}
	cloudlets := func(rtt time.Duration) near.Map {
		return near.Map{"one": {RTT: map[string]time.Duration{"two": rtt}}, "two": {}}
	}
	rtt := time.Millisecond
	for _, c := range []struct {
		what   string
		change func()
		anew   bool
	}{
		{"at first", func() {}, true},
		{"nothing", func() {}, false},
		{"a chain", func() { objects[onpath.KeyOf(chain)] = onpath.Clone(chain) }, false},
		{"a service", func() { objects[onpath.KeyOf(o)] = onpath.Clone(o) }, true},
		{"a tenant's zones", func() { objects[onpath.KeyOf(tenant)] = onpath.Clone(tenant) }, true},
		{"a round trip", func() { rtt++ }, true},
		{"no service", func() { delete(objects, onpath.KeyOf(o)) }, true},
	} {
		was := n.directory.Load()
		c.change()
		n.Note(objects, cloudlets(rtt), nil)
		if anew := n.directory.Load() != was; anew != c.anew {
			t.Errorf("%s: made anew %t, want %t", c.what, anew, c.anew)
		}
	}
}
