package onpath

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
)

// NodePlan is the whole desired state of one node: what to run and how to steer.
// The planner derives it, nobody stores it but the node itself (so that a
// restarted agent knows what was asked of it with the server away).
type NodePlan struct {
	Node string `json:"node"`
	// Generation rises with every plan that differs from the one before.
	Generation uint64 `json:"generation"`
	// Store is the identity of the store that the plan was made from; plans of version 0.1
	// do not say it.
	Store     string         `json:"store,omitempty"`
	Instances []InstancePlan `json:"instances,omitempty"` // by name
	// Prepare are functions of which instances will begin here soon, by a reservation: their
	// images are made ready.
	Prepare  []FunctionSpec `json:"prepare,omitempty"`
	Datapath DatapathConfig `json:"datapath"`
	// Measure is what the node measures and answers; nil: nothing.
	Measure *MeasurePlan `json:"measure,omitempty"`
	// Leases is what the node may admit by itself; nil: nothing.
	Leases *LeasePlan `json:"leases,omitempty"`
	// PeerLeases are the slots with addresses of the other gateway of a pair: what comes for
	// them goes there.
	PeerLeases []LeaseSlot `json:"peerLeases,omitempty"`
	// Contents are what several files of a compact plan have, once, by its hash. These files name
	// that in FromFile. Any other plan has none.
	Contents map[string]string `json:"contents,omitempty"`
}

// compactFrom is how long a content is, in bytes, that a compact plan has only once.
const compactFrom = 4 << 10

// Compact is the plan with each long content that several of its files have only once, and how
// many bytes it is shorter. It is p itself where that is none.
func (p *NodePlan) Compact() (compact *NodePlan, saved int) {
	names := map[string]string{} // of contents; "": one file has it
	p.eachFile(func(_ string, f File) (File, bool) {
		if len(f.Content) < compactFrom {
			return f, false
		}
		name, again := names[f.Content]
		if again {
			saved += len(f.Content)
		}
		if again && name == "" {
			sum := sha256.Sum256([]byte(f.Content))
			name = "sha256:" + hex.EncodeToString(sum[:])
		}
		names[f.Content] = name
		return f, false
	})
	if saved == 0 {
		return p, 0
	}
	c := *p
	c.Instances, c.Prepare, c.Contents = slices.Clone(p.Instances), slices.Clone(p.Prepare), map[string]string{}
	c.eachFile(func(_ string, f File) (File, bool) {
		name := names[f.Content]
		if name == "" {
			return f, false
		}
		c.Contents[name] = f.Content
		return File{FromFile: name, Mode: f.Mode}, true
	})
	return &c, saved
}

// Expand gives the files of a compact plan their contents back.
func (p *NodePlan) Expand() (err error) {
	p.eachFile(func(file string, f File) (File, bool) {
		if f.FromFile == "" {
			return f, false
		}
		content, known := p.Contents[f.FromFile]
		if !known {
			err = fmt.Errorf("the content %s of file %s is not in the plan", f.FromFile, file)
		}
		return File{Content: content, Mode: f.Mode}, true
	})
	p.Contents = nil
	return err
}

// eachFile goes through the files of all functions, and puts others in their place.
func (p *NodePlan) eachFile(do func(file string, f File) (other File, put bool)) {
	each := func(s *FunctionSpec) {
		others := map[string]File{}
		for _, b := range s.Brings().Files {
			for file, f := range b.Files {
				if other, put := do(file, f); put {
					others[file] = other
				}
			}
		}
		if len(others) > 0 {
			*s = s.With(nil, others) // once: it copies all files
		}
	}
	for i := range p.Instances {
		each(&p.Instances[i].Spec)
	}
	for i := range p.Prepare {
		each(&p.Prepare[i])
	}
}

// InstancePlan is one instance to run, with everything the node needs for it.
type InstancePlan struct {
	Name       string       `json:"name"` // of the Instance object
	Tenant     string       `json:"tenant"`
	Deployment string       `json:"deployment"`
	Function   string       `json:"function"` // tenant/name, for display
	UID        string       `json:"uid"`      // of the Instance object: names are not reused, UIDs certainly not
	Spec       FunctionSpec `json:"spec"`     // env, files and resources as merged with the deployment's
	Vport      VportID      `json:"vport"`
	Back       VportID      `json:"back,omitempty"` // second side of a bridged instance
	// Addresses are its own, with prefix length.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Serves are addresses of services that it holds beside its own: it answers there, and
	// begins nothing from there.
	Serves []netip.Addr `json:"serves,omitempty"`
	// MTU of its interfaces, bytes.
	MTU int `json:"mtu"`
	// Idle are the idle times that the instance must keep to: of the chains that
	// it stands in, the longest. The node tells it.
	Idle Idle `json:"idle,omitzero"`
	// Draining: keep it running, do not restart it when it ends.
	Draining bool `json:"draining,omitempty"`
	// OnDemand: it sleeps until its first packet; nil: it always runs.
	OnDemand *OnDemand `json:"onDemand,omitempty"`
	// Reservation, in the tenant, that gives it its size; "": none.
	Reservation string `json:"reservation,omitempty"`
	// UserNamespace says whether a container gets one of its own; "": none.
	UserNamespace UserNamespaceRule `json:"userNamespace,omitempty"`
	// Pair: it is a half; nil: of no pair, or the partner is gone.
	Pair *Pair `json:"pair,omitempty"`
}
