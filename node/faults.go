package node

import (
	"cmp"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/fault"
	"github.com/onpath/onpath/node/machine"
	"github.com/onpath/onpath/node/wiring"
)

// Fault causes a fault.
func (a *Agent) Fault(r onpath.FaultRequest) (*onpath.Fault, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if r.Kind.OfNode() {
		return a.faultOfNode(r)
	}
	f, err := a.instances.Fact(r.Instance)
	if err != nil {
		return nil, err
	}
	target := fault.Instance{ID: f.ID, Plan: f.Plan}
	if f.Process != nil {
		target.PID = f.Process.Pid()
	}
	return a.faults.OfInstance(r, target)
}

func (a *Agent) faultOfNode(r onpath.FaultRequest) (*onpath.Fault, error) {
	if r.Node != a.opt.Name {
		return nil, onpath.Errorf(onpath.CodeInvalid, "a fault of node %s was asked of node %s", r.Node, a.opt.Name)
	}
	spec := a.machine.Spec()
	if r.Kind == onpath.FaultKillNode && len(spec.Uplinks) > 0 {
		e := onpath.Errorf(onpath.CodeUnsupported, "node %s is a gateway: what comes by its uplinks cannot be cut off on purpose", r.Node)
		e.Remedy = "inject cut-link, which cuts its tunnels, or take its ports down at the switch; in a lab, kill its host"
		return nil, e
	}
	device, err := underlayDevice(a.opt.NetNS, spec.Underlay)
	if err != nil {
		return nil, err
	}
	n := fault.Node{Underlay: device, Port: cmp.Or(spec.Underlay.Port, onpath.DefaultTunnelPort)}
	if r.Peer != "" {
		peer, err := peerNamed(a.plans.get().wanted, a.opt.Name, r.Peer)
		if err != nil {
			return nil, err
		}
		n.Peer = peer.Address
	}
	return a.faults.OfNode(r, n)
}

// underlayDevice is the one with the underlay address.
func underlayDevice(netns string, u onpath.Underlay) (string, error) {
	h, err := wiring.Open(netns)
	if err != nil {
		return "", err
	}
	defer h.Close()
	link, c := machine.Underlay(h, u.Address)
	if link == nil {
		return "", onpath.Errorf(onpath.CodeUnavailable, "there is no link to be cut: %s", c.Message)
	}
	return link.Attrs().Name, nil
}

// peerNamed is another node to which this one has a tunnel.
func peerNamed(plan *onpath.NodePlan, self, name string) (onpath.Peer, error) {
	var names []string
	if plan != nil {
		for _, p := range plan.Datapath.Peers {
			if p.Node == name {
				return p, nil
			}
			names = append(names, p.Node)
		}
	}
	e := onpath.Errorf(onpath.CodeNotFound, "node %s has no tunnel to a node %s", self, name)
	e.Remedy = "it has none at all"
	if len(names) > 0 {
		slices.Sort(names)
		e.Remedy = "it has some to " + strings.Join(names, ", ")
	}
	return onpath.Peer{}, e
}
