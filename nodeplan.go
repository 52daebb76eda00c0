package onpath

import (
	"net/netip"
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
}
