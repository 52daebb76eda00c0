package onpath

// TraceRequest asks which way a packet takes.
type TraceRequest struct {
	// Tuple of the packet; a source port of 0 stands for any flow.
	Tuple Tuple `json:"tuple"`
	// Gateway where it enters; empty: all.
	Gateway string `json:"gateway,omitempty"`
	// Tenant limits what is shown to that tenant's; empty: the operator asks.
	Tenant string `json:"tenant,omitempty"`
}

// Trace is the way of a flow, from the plan and from live flow entries.
type Trace struct {
	Tuple   Tuple      `json:"tuple"`
	Forward []TraceHop `json:"forward"`
	Reverse []TraceHop `json:"reverse"`
	// Chains that select it, the operator's first: "tenant/name".
	Chains []string `json:"chains,omitempty"`
	// Live: a flow entry of it was found.
	Live bool `json:"live"`
	// Idle is how long ago its last packet came in, if it is live.
	Idle Duration `json:"idle,omitempty"`
	// Warnings say where live differs from planned, or traffic bypasses.
	Warnings []Note `json:"warnings,omitempty"`
}

// TraceHop is one hop in order of travel.
type TraceHop struct {
	Kind HopKind `json:"kind"`
	Node string  `json:"node,omitempty"`
	// Vport it stands for; 0 where more than one are possible.
	Vport VportID `json:"vport,omitempty"`
	// Name of the instance ("tenant/name"), or of the uplinks.
	Name string `json:"name,omitempty"`
	// Chain ("tenant/name") and Element (from 0) it belongs to.
	Chain   string `json:"chain,omitempty"`
	Element int    `json:"element"`
	Mode    Mode   `json:"mode,omitempty"`
	State   string `json:"state,omitempty"`
	// Candidates are the instances that a new flow may be given to.
	Candidates []string `json:"candidates,omitempty"`
	// Live: this is what flow entries say, not the plan alone.
	Live bool `json:"live"`
	// Ends: nothing of this flow is known to go on from here.
	Ends bool `json:"ends,omitempty"`
	// Unsure: how this flow goes on from here, and whether it does, cannot be told.
	// What follows is the plan's.
	Unsure bool `json:"unsure,omitempty"`
	// Counters of the vport, and of this flow at it where there is an entry.
	Counters *VportCounters `json:"counters,omitempty"`
	Flow     *Tally         `json:"flow,omitempty"`
	// Tuple of the flow behind this hop, where live entries tell.
	Tuple   *Tuple `json:"tuple,omitempty"`
	Message string `json:"message,omitempty"`
}

// HopKind says what a hop is.
type HopKind string

// The kinds of hop.
const (
	HopEdge    HopKind = "edge"    // the uplinks of a gateway, coming in
	HopElement HopKind = "element" // an instance
	HopTunnel  HopKind = "tunnel"  // to another node
	HopStretch HopKind = "stretch" // from one half of a pair to the other; Message says whose it is
	HopExit    HopKind = "exit"    // the uplinks of a gateway, going out
	HopKernel  HopKind = "kernel"  // ordinary forwarding, untouched
	HopDrop    HopKind = "drop"    // ends here; Message says why
)
