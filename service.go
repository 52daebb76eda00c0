package onpath

import (
	"net/netip"
	"strings"
)

// Service is a deployment that answers at addresses of its own, one in each cloudlet, and
// under one name that leads to the nearest (NetServ §3). All its instances of a cloudlet
// hold the address there.
type Service struct {
	TypeMeta
	Metadata Metadata      `json:"metadata"`
	Spec     ServiceSpec   `json:"spec"`
	Status   ServiceStatus `json:"status,omitzero"`
}

// ServiceSpec says who answers, where, and to what.
type ServiceSpec struct {
	// Deployment, of the same tenant, whose instances answer: containers that are attached
	// by attach: routed, or modules that serve ports.
	Deployment Ref `json:"deployment"`
	// Name is the DNS name, within spec.zones of the Tenant; empty: none. CLOUDLET.NAME is
	// the address in one cloudlet.
	Name string `json:"name,omitempty"`
	// Select says by protocol and destinationPorts what is answered; all else that comes to
	// the addresses is dropped.
	Select []Selector `json:"select"`
	// Cloudlets; empty: all that have a gateway, and where the deployment may run.
	Cloudlets []string `json:"cloudlets,omitempty"`
}

// ServiceStatus says where the service answers.
type ServiceStatus struct {
	Cloudlets  []ServicePlace `json:"cloudlets,omitempty"` // by name
	Conditions []Condition    `json:"conditions,omitempty"`
}

// ServicePlace is a service in one cloudlet.
type ServicePlace struct {
	Cloudlet string `json:"cloudlet"`
	// Addresses of the server's public pools, one of each IP version that they have.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Ready instances, on nodes that are heard of.
	Ready int `json:"ready"`
	// Serves: the addresses are led to a ready instance. DNS answers with no others.
	Serves bool `json:"serves,omitempty"`
}

// EchoRequest has a node measure the round trip to an address outside, by ICMP echo.
type EchoRequest struct {
	Address netip.Addr `json:"address"`
}

// EchoAnswer is the least round trip that was seen; 0: nothing answers.
type EchoAnswer struct {
	RTT Duration `json:"rtt"`
}

// ServiceLabel names the service on the chains that onpath makes for it.
const ServiceLabel = "onpath/service"

// Bounds of services.
const (
	MaxServiceSelectors = 16
	maxDomain           = 180 // characters, so that a cloudlet's name has room before it
)

// At is the service in a cloudlet; nil: it is not there.
func (s *ServiceStatus) At(cloudlet string) *ServicePlace {
	for i := range s.Cloudlets {
		if s.Cloudlets[i].Cloudlet == cloudlet {
			return &s.Cloudlets[i]
		}
	}
	return nil
}

// Meta implements Object.
func (s *Service) Meta() *Metadata { return &s.Metadata }

// ObjectKind implements Object.
func (s *Service) ObjectKind() Kind { return KindService }

// Validate implements Object.
func (s *Service) Validate() error {
	v := begin(s, &s.TypeMeta)
	v.ref("spec.deployment", &s.Spec.Deployment, "deployment", s.Metadata.Tenant)
	if s.Spec.Name != "" {
		v.domain("spec.name", s.Spec.Name)
	}
	switch n := len(s.Spec.Select); {
	case n == 0:
		v.add("spec.select", "write [{protocol: tcp, destinationPorts: [80]}]", "is missing")
	case n > MaxServiceSelectors:
		v.add("spec.select", "", "%d entries are too many; at most %d", n, MaxServiceSelectors)
	default:
		v.selectors("spec.select", s.Spec.Select, noFamily, &ChainSpec{})
	}
	for i, x := range s.Spec.Select {
		if len(x.Sources)+len(x.SourcePorts)+len(x.Destinations) > 0 {
			v.add(index("spec.select", i), "keep protocol and destinationPorts", "a service is for all who reach its address")
		}
	}
	s.Spec.Cloudlets = v.names("spec.cloudlets", s.Spec.Cloudlets)
	return v.err()
}

// domain checks a DNS name of two labels or more, in lower case and without a dot at its end.
func (v *validation) domain(field, s string) {
	labels := strings.Split(s, ".")
	good := len(labels) > 1 && len(s) <= maxDomain
	for _, l := range labels {
		good = good && isName(l)
	}
	if !good {
		v.add(field, "write a name such as cdn.example.net", "%s is not a DNS name of lower-case labels, with at most %d characters",
			quote(s), maxDomain)
	}
}

// InZone reports whether a DNS name is a zone's or lies in it.
func InZone(name, zone string) bool { return name == zone || strings.HasSuffix(name, "."+zone) }
