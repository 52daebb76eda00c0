// Package attach writes the objects by which functions are attached to a machine, and
// takes functions off it again (GNFC §III-C).
package attach

import (
	"slices"
	"strings"

	"github.com/onpath/onpath"
)

// Request says what to attach to the machine of a node.
type Request struct {
	Node    string
	Tenant  string // "" is the default one
	Through []string
	// Ports such as tcp/80, udp/53, tcp/8000-8999 or icmp: the machine's services, and
	// those of others that it uses. None: all traffic (the exhaustive policy).
	Ports []string
	// Copy: the functions get copies (the replica policy).
	Copy bool
	// Bypass: traffic goes past functions without a ready instance, instead of being dropped.
	Bypass bool
	// Place are the labels of the nodes that may run the functions.
	Place map[string]string
}

// Name is that of the Hosts and of the Chain of a machine.
func Name(node string) string { return "attached-" + node }

// Chain is a machine's chain with the requested functions behind those that it has; have is
// nil if it has none yet. A function that it has already is attached anew, as requested now.
func Chain(r Request, have *onpath.Chain) (*onpath.Chain, error) {
	selected, err := selectors(r.Ports)
	if err != nil {
		return nil, err
	}
	c := &onpath.Chain{TypeMeta: meta(onpath.KindChain), Metadata: onpath.Metadata{Tenant: r.Tenant, Name: Name(r.Node)}}
	c.Spec.From, c.Spec.To = onpath.Endpoints{Any: true}, onpath.Endpoints{Hosts: onpath.Ref(Name(r.Node))}
	if have != nil {
		c = onpath.Clone(have)
		c.Status = onpath.ChainStatus{}
	}
	for _, name := range r.Through {
		e := onpath.Element{Function: onpath.Ref(name), Select: selected, Place: onpath.Place{Nodes: r.Place}}
		switch {
		case r.Copy:
			e.Mode = onpath.ModeMirror
		case r.Bypass:
			e.None = onpath.NoneBypass
		}
		if i := find(c, name); i >= 0 {
			c.Spec.Through[i] = e
		} else {
			c.Spec.Through = append(c.Spec.Through, e)
		}
	}
	return c, nil
}

// Hosts stand for the machine of a node.
func Hosts(r Request) *onpath.Hosts {
	return &onpath.Hosts{TypeMeta: meta(onpath.KindHosts), Metadata: onpath.Metadata{Tenant: r.Tenant, Name: Name(r.Node)},
		Spec: onpath.HostsSpec{Node: r.Node}}
}

// Without is a machine's chain without functions; nil: none is left, and the chain and the
// Hosts go. No names stand for all functions.
func Without(c *onpath.Chain, names []string) (*onpath.Chain, error) {
	if len(names) == 0 {
		return nil, nil
	}
	c = onpath.Clone(c)
	c.Status = onpath.ChainStatus{}
	for _, name := range names {
		i := find(c, name)
		if i < 0 {
			e := onpath.Errorf(onpath.CodeNotFound, "function %s is not attached to this machine", name)
			e.Remedy = "attached are: " + strings.Join(Attached(c), ", ")
			return nil, e
		}
		c.Spec.Through = slices.Delete(c.Spec.Through, i, i+1)
	}
	if len(c.Spec.Through) == 0 {
		return nil, nil
	}
	return c, nil
}

// Attached are the functions of a machine's chain, in order.
func Attached(c *onpath.Chain) (names []string) {
	for _, e := range c.Spec.Through {
		names = append(names, string(e.Function)+string(e.Deployment))
	}
	return names
}

func find(c *onpath.Chain, function string) int {
	return slices.IndexFunc(c.Spec.Through, func(e onpath.Element) bool { return string(e.Function) == function })
}

func meta(k onpath.Kind) onpath.TypeMeta {
	return onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: k}
}

// selectors reads ports. Seen toward the machine, its own services are destinations, those
// of others are sources.
func selectors(ports []string) (out []onpath.Selector, err error) {
	for _, text := range ports {
		protocol, number, some := strings.Cut(text, "/")
		if !some && protocol != "icmp" {
			return nil, wrong(text)
		}
		if !some {
			out = append(out, onpath.Selector{Protocol: onpath.Protocol(protocol)})
			continue
		}
		var r onpath.PortRange
		if err := r.UnmarshalText([]byte(number)); err != nil || r.First == 0 || protocol != "tcp" && protocol != "udp" {
			return nil, wrong(text)
		}
		own := onpath.Selector{Protocol: onpath.Protocol(protocol), DestinationPorts: []onpath.PortRange{r}}
		others := onpath.Selector{Protocol: onpath.Protocol(protocol), SourcePorts: []onpath.PortRange{r}}
		out = append(out, own, others)
	}
	return out, nil
}

func wrong(text string) error {
	e := onpath.Errorf(onpath.CodeInvalid, "%q says no ports", text)
	e.Remedy = "write PROTOCOL/PORT or PROTOCOL/FIRST-LAST with tcp or udp, such as tcp/80, or icmp"
	return e
}

// Check refuses a node whose own traffic no chain can take.
func Check(n *onpath.Node) error {
	if n.AttachedHost() {
		return nil
	}
	name := n.Metadata.Name
	if n.Gateway() {
		e := onpath.Errorf(onpath.CodeUnsupported, "node %s is a gateway: its uplinks carry the traffic of others", name)
		e.Remedy = "write a Chain for that traffic, or a node with attach: host alone"
		return e
	}
	e := onpath.Errorf(onpath.CodeInvalid, "the own traffic of node %s passes no data path: it has no uplink with attach: host", name)
	e.Remedy = "start it with onpath node --attach host, or name the device in spec.uplinks of Node " + name
	return e
}
