package onpath

// VerifyRequest asks for a proof of what the nodes' rules do.
type VerifyRequest struct {
	// Chains ("tenant/name") to prove; empty: all, and that traffic which no
	// chain selects is left alone.
	Chains []string `json:"chains,omitempty"`
	// Live has the plans looked at that nodes acknowledged, not the newest.
	Live bool `json:"live,omitempty"`
	// Tenant limits what is shown to that tenant's; empty: the operator asks.
	Tenant string `json:"tenant,omitempty"`
}

// Verdict is the outcome of a proof.
type Verdict string

// The verdicts, the best first.
const (
	VerdictProved   Verdict = "proved"
	VerdictIdle     Verdict = "idle"     // promises nothing now: disabled, or waiting to begin
	VerdictUnproven Verdict = "unproven" // neither proved nor refuted; Reason says why
	VerdictRefuted  Verdict = "refuted"  // a flow leaves the promised way
)

// Scope says over what a chain's proof reaches.
type Scope string

// The scopes.
const (
	ScopeEndToEnd Scope = "end-to-end" // no element changes packets: one flow, from where it enters to where it leaves
	ScopeSegments Scope = "segments"   // from element to element: what one that rewrites or originates emits is a flow of its own
)

// Verification says, for the rules of the whole network, which chains keep their
// promise: every flow that a chain selects crosses its elements in order, in
// both directions, and nothing bypasses them.
type Verification struct {
	Live    bool                `json:"live"`
	Verdict Verdict             `json:"verdict"` // the worst of all
	Chains  []ChainVerification `json:"chains"`
	// Rest is about traffic that no chain selects: it must be left alone.
	// Absent where only some chains were asked for.
	Rest *ChainVerification `json:"rest,omitempty"`
	// NoReport are the nodes on which something here rests and that cannot be asked
	// what they have in force; Live only.
	NoReport []string `json:"noReport,omitempty"`
	// Classes are the sets of flows that were followed, each as one.
	Classes int `json:"classes"`
	// Took is the time for the proof alone.
	Took  Duration `json:"took"`
	Notes []string `json:"notes,omitempty"`
}

// ChainVerification is the verdict on one chain.
type ChainVerification struct {
	Chain   string  `json:"chain,omitempty"` // "tenant/name"; empty: what no chain selects
	Verdict Verdict `json:"verdict"`
	Scope   Scope   `json:"scope,omitempty"`
	// Segments are the parts that are proved one by one, each from an edge or
	// element to an element or edge; one if Scope is end-to-end.
	Segments []string `json:"segments,omitempty"`
	// Redirects are the elements whose function may send packets to later elements,
	// past those between, with what is proved of them. Which packets, its code says.
	Redirects []string `json:"redirects,omitempty"`
	Classes   int      `json:"classes"`
	// Reason is why it is idle or unproven.
	Reason         string          `json:"reason,omitempty"`
	Counterexample *Counterexample `json:"counterexample,omitempty"`
	Notes          []string        `json:"notes,omitempty"`
}

// Counterexample is a flow that leaves the promised way.
type Counterexample struct {
	// Tuple of its first packet, as it stands where it starts.
	Tuple Tuple `json:"tuple"`
	// Entry is the node where it starts: a gateway, or that of the instance
	// which emits it.
	Entry string `json:"entry"`
	// Instance that emits it, if none came in: "tenant/name".
	Instance string `json:"instance,omitempty"`
	// Reverse: it runs against the chain's from→to.
	Reverse bool `json:"reverse,omitempty"`
	// Promised are the deployments it ought to cross, in order.
	Promised []string `json:"promised"`
	// Way is what it crosses instead, hop by hop, as far as it comes.
	Way []Note `json:"way"`
	// At is the node where it leaves the promised way.
	At string `json:"at"`
	// Message says what happens there, and About of whose chains and instances,
	// as "tenant/name", it speaks.
	Message string   `json:"message"`
	About   []string `json:"-"`
}
