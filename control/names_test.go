package control_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestNames: a name leads to a cloudlet that serves; of clients whom nobody knows, the
// gateways measure which is near.
func TestNames(t *testing.T) {
	s := newSite(t)
	defer s.stop()
	s.mu.Lock()
	s.echoes = map[string]onpath.Duration{"gw1": onpath.Duration(9 * time.Millisecond), "gw2": onpath.Duration(time.Millisecond)}
	s.mu.Unlock()
	s.join("gw1", "ams1", 1, true)
	s.join("gw2", "fra1", 2, true)
	f := &onpath.Function{Metadata: onpath.Metadata{Name: "web"},
		Spec: onpath.FunctionSpec{State: onpath.StateTerminates, Container: &onpath.ContainerSpec{Image: "docker.io/library/web"}}}
	d := &onpath.Deployment{Metadata: onpath.Metadata{Name: "web"}, Spec: onpath.DeploymentSpec{Function: "web"}}
	o := &onpath.Service{Metadata: onpath.Metadata{Name: "cdn"}, Spec: onpath.ServiceSpec{Deployment: "web", Name: "cdn.example.net",
		Select: []onpath.Selector{{Protocol: "tcp", DestinationPorts: []onpath.PortRange{{First: 80, Last: 80}}}}}}
	s.apply(f, d, o)
	client := netip.MustParsePrefix("192.0.2.53/32")
	at := func() string {
		if d := s.c.Names().Directory(); d != nil {
			return d.Look("cdn.example.net", client, client.Addr()).Cloudlet
		}
		return ""
	}
	s.until("the name leads somewhere", func() bool { return at() != "" })
	s.until("the client asks for some seconds, is measured, and led to the nearest", func() bool {
		s.c.Names().Seen(client.Addr())
		return at() == "fra1"
	})

	s.mu.Lock()
	n := s.nodes["gw2"]
	n.failed["web"] = "exit code 1"
	s.mu.Unlock()
	n.report()
	s.until("nobody is ready there: it leads to the other", func() bool { return at() == "ams1" })
	s.remove(onpath.KeyOf(o))
	s.until("with the service its name goes", func() bool { return s.c.Names().Directory().Look("cdn.example.net", client, client.Addr()).Zone == "" })
}
