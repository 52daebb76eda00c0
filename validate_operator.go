package onpath

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
)

// DefaultMaxFlows caps the flow entries that a tenant's instances cause by themselves on one
// node where TenantSpec.MaxFlows is 0.
const DefaultMaxFlows = 262144

// MostNewFlows is the highest TenantSpec.MaxNewFlows.
const MostNewFlows = 10_000_000

// DefaultMaxNewFlows is TenantSpec.MaxNewFlows where it is 0. The operator's chains
// take up flows of all tenants, which have limits of their own.
func DefaultMaxNewFlows(tenant string) int {
	if tenant == OperatorTenant {
		return -1
	}
	return 100_000
}

// Validate implements Object.
func (t *Tenant) Validate() error {
	v := begin(t, &t.TypeMeta)
	v.text("spec.display", t.Spec.Display, 200)
	v.number("spec.maxFlows", t.Spec.MaxFlows, 0, 1<<26)
	byDefault(&t.Spec.MaxNewFlows, DefaultMaxNewFlows(t.Metadata.Name))
	if n := t.Spec.MaxNewFlows; n != -1 && (n < 1 || n > MostNewFlows) {
		v.add("spec.maxNewFlows", fmt.Sprintf("write 1 to %d, or -1 for no limit", MostNewFlows), "%d is out of range", n)
	}
	if len(t.Spec.Addresses) > 0 && t.Metadata.Name == OperatorTenant {
		v.add("spec.addresses", "take it out", "tenant %s may select any traffic", OperatorTenant)
	}
	t.Spec.Addresses = v.prefixes("spec.addresses", t.Spec.Addresses, maxPrefixes)
	v.number("spec.registries", len(t.Spec.Registries), 0, 100)
	for i, r := range t.Spec.Registries {
		if !registryName.MatchString(r) {
			v.add(index("spec.registries", i), "write a domain, with a path if you like, such as ghcr.io/acme",
				"%s names no registry", quote(r))
		}
	}
	v.number("spec.zones", len(t.Spec.Zones), 0, 100)
	for i, z := range t.Spec.Zones {
		v.domain(index("spec.zones", i), z)
	}
	if q := t.Spec.Quota; q != nil {
		v.number("spec.quota.chains", q.Chains, 0, 1<<20)
		v.number("spec.quota.instances", q.Instances, 0, 1<<20)
		v.number("spec.quota.claims", q.Claims, 0, 1<<20)
		v.number("spec.quota.serviceAddresses", q.ServiceAddresses, -1, 1<<20)
		v.number("spec.quota.objects", q.Objects, -1, 1<<30)
		v.number("spec.quota.bytes", int(q.Bytes), 0, 1<<40)
		v.number("spec.quota.secrets", int(q.Secrets), 0, 1<<30)
		v.number("spec.quota.requests", q.Requests, -1, 1<<20)
		v.resources("spec.quota.capacity", q.Capacity)
	}
	v.number("spec.keys", len(t.Spec.Keys), 0, 16)
	for i, s := range t.Spec.MetricSources {
		v.metricSource(index("spec.metricSources", i), s)
	}
	return v.err()
}

// Validate implements Object.
func (c *Cloudlet) Validate() error {
	v := begin(c, &c.TypeMeta)
	l := c.Spec.Location
	v.text("spec.location.city", l.City, 200)
	if math.IsNaN(l.Latitude) || l.Latitude < -90 || l.Latitude > 90 {
		v.add("spec.location.latitude", "write degrees north, -90 to 90", "%v is out of range", l.Latitude)
	}
	if math.IsNaN(l.Longitude) || l.Longitude < -180 || l.Longitude > 180 {
		v.add("spec.location.longitude", "write degrees east, -180 to 180", "%v is out of range", l.Longitude)
	}
	v.number("spec.operatorShare", c.Spec.OperatorShare, 0, 100)
	c.Spec.Prefixes = v.prefixes("spec.prefixes", c.Spec.Prefixes, maxPrefixes)
	if iso := c.Spec.Isolation; iso != nil {
		iso.Capabilities = v.allowedCapabilities("spec.isolation.capabilities", iso.Capabilities)
		if iso.UserNamespaces != "" {
			enum(v, "spec.isolation.userNamespaces", &iso.UserNamespaces, "", UserNamespacesPossible, UserNamespacesRequired,
				UserNamespacesNever)
		}
	}
	if c.Spec.Reservations != "" {
		enum(v, "spec.reservations", &c.Spec.Reservations, "", ReservationsNone, ReservationsRequired)
	}
	return v.err()
}

// Validate implements Object.
func (n *Node) Validate() error {
	v := begin(n, &n.TypeMeta)
	s := &n.Spec
	if s.Schedulable == nil {
		s.Schedulable = new(bool)
		*s.Schedulable = true
	}
	v.name("spec.cloudlet", s.Cloudlet)
	v.underlay(&s.Underlay)
	v.uplinks(s.Uplinks)
	v.resources("spec.capacity", s.Capacity)
	v.leases(s)
	return v.err()
}

func (v *validation) underlay(u *Underlay) {
	switch a := u.Address; {
	case !a.IsValid():
		v.add("spec.underlay.address", "write the address by which other nodes reach this one, such as 10.255.0.7", "is missing")
	case a.IsUnspecified() || a.IsMulticast() || a.Is4In6() || a.Zone() != "" || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		v.add("spec.underlay.address", "write the address by which other nodes reach this one",
			"%s cannot be the address of one machine", a)
	}
	if u.MTU != 0 {
		v.number("spec.underlay.mtu", u.MTU, MinMTU, MaxMTU)
	}
	byDefault(&u.Port, DefaultTunnelPort)
	if u.Port == 65535 {
		v.add("spec.underlay.port", "write a lower one", "the port behind it, of WireGuard, would be none")
	}
	if u.Tunnel != "" {
		enum(v, "spec.underlay.tunnel", &u.Tunnel, "", TunnelAuto, TunnelVXLAN, TunnelWireGuard)
	}
}

func (v *validation) uplinks(uplinks []Uplink) {
	if len(uplinks) > maxUplinks {
		v.add("spec.uplinks", "", "%d uplinks are too many; at most %d", len(uplinks), maxUplinks)
		return
	}
	sides := map[Side]int{}
	bridge := -1
	for i := range uplinks {
		u := &uplinks[i]
		at := index("spec.uplinks", i)
		v.name(at+".name", u.Name)
		if v.device(at+".device", u.Device); u.Device == "lo" {
			v.add(at+".device", "name the device by which transit traffic comes", "no traffic of others passes the loopback device")
		}
		for j := range i {
			if u.Name != "" && uplinks[j].Name == u.Name {
				v.add(at+".name", "give it another name", "another uplink is called %q", u.Name)
			}
			if u.Device != "" && uplinks[j].Device == u.Device {
				v.add(at+".device", "leave one of the two out", "uplink %q has device %s already", uplinks[j].Name, u.Device)
			}
		}
		enum(v, at+".attach", &u.Attach, "", AttachRouter, AttachBridge, AttachArm, AttachTap, AttachHost)
		if u.Fast != "" {
			enum(v, at+".fast", &u.Fast, "", FastAuto, FastAlways, FastNever)
		}
		if u.Fast == FastAlways && u.Attach != AttachRouter && u.Attach != AttachArm {
			v.add(at+".fast", "leave it out here", "an uplink with attach: %s has no fast path; only router and arm have", u.Attach)
		}
		if u.Side != "" || u.Attach == AttachBridge {
			enum(v, at+".side", &u.Side, "", SideCore, SideAccess)
		}
		if u.Attach == AttachBridge {
			sides[u.Side]++
			bridge = i
		}
	}
	if bridge >= 0 && (len(sides) != 2 || sides[SideCore] != 1 || sides[SideAccess] != 1) {
		v.add(index("spec.uplinks", bridge)+".attach",
			"write two uplinks with attach: bridge, one with side: core and one with side: access",
			"a bridge has two devices, one on each side")
	}
}

// device checks the name of a network device as the kernel does.
func (v *validation) device(field, s string) {
	if s == "" {
		v.add(field, "write the name of a network device, such as eth1", "is missing")
		return
	}
	if len(s) > 15 || s == "." || s == ".." || strings.ContainsAny(s, "/: \t\n\r\v\f\x00") {
		v.add(field, "", "%s is not the name of a network device: at most 15 characters, no slash, colon or space", quote(s))
	}
}

// Bounds of resources: of one machine, for years to come.
const (
	maxCPU     CPU  = 4096 * 1000
	minMemory  Size = 4 << 20
	maxMemory  Size = 64 << 40
	maxDisk    Size = 1024 << 40
	maxNetwork Rate = 100e12
)

// resources checks amounts, of which zero means not said.
func (v *validation) resources(field string, r Resources) {
	if r.CPU != 0 {
		quantity(v, field+".cpu", r.CPU, 1, maxCPU)
	}
	if r.Memory != 0 {
		quantity(v, field+".memory", r.Memory, minMemory, maxMemory)
	}
	if r.Disk != 0 {
		quantity(v, field+".disk", r.Disk, 1, maxDisk)
	}
	if r.Network != 0 {
		quantity(v, field+".network", r.Network, 1, maxNetwork)
	}
}

// Validate implements Object.
func (i *Instance) Validate() error {
	v := begin(i, &i.TypeMeta)
	v.name("spec.deployment", i.Spec.Deployment)
	v.name("spec.node", i.Spec.Node)
	if i.Spec.Vport == 0 || i.Spec.Vport > MaxID24 {
		v.add("spec.vport", "", "%d is not a vport", i.Spec.Vport)
	}
	if i.Spec.Back > MaxID24 {
		v.add("spec.back", "", "%d is not a vport", i.Spec.Back)
	}
	return v.err()
}

// Validate implements Object.
func (e *Event) Validate() error {
	v := begin(e, &e.TypeMeta)
	if e.Spec.Reason == "" {
		v.add("spec.reason", "", "is missing")
	}
	byDefault(&e.Spec.Count, 1)
	return v.err()
}
