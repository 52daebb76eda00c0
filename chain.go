package onpath

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
)

// Chain says which traffic passes through which deployments, in which order, to
// where (Stratos §3; RFC 7665: a service function chain).
type Chain struct {
	TypeMeta
	Metadata Metadata    `json:"metadata"`
	Spec     ChainSpec   `json:"spec"`
	Status   ChainStatus `json:"status,omitzero"`
}

// ChainSpec is a chain as written.
type ChainSpec struct {
	// Tier: a packet passes at most one chain of each tier; whoever starts a
	// flow meets the operator's first. Default tenant.
	Tier Tier `json:"tier,omitempty"`
	// Priority within the tier; higher wins. An overlap at equal priority is refused.
	Priority int       `json:"priority,omitempty"`
	From     Endpoints `json:"from"`
	To       Endpoints `json:"to"`
	At       At        `json:"at,omitzero"`
	// Select narrows From→To; empty selects all of it. A packet is selected if
	// any entry matches.
	Select  []Selector `json:"select,omitempty"`
	Through []Element  `json:"through"`
	// Exit: entry (default): back to the gateway where the flow entered; last:
	// leave at the last element's node; none: the path ends at its last element, nothing
	// leaves behind it, and what no element selects is dropped.
	Exit Exit `json:"exit,omitempty"`
	// Direction: both (default): both directions cross the same instances; forward:
	// replies go the ordinary way, but those to what an instance began, or changed
	// the addresses of, find back to it.
	Direction Direction `json:"direction,omitempty"`
	// Adopt is how long, after the chain begins, TCP connections older than it
	// are passed by; default 60s.
	Adopt *Duration `json:"adopt,omitempty"`
	// Existing: pass (default) or cut connections older than the chain.
	Existing Existing `json:"existing,omitempty"`
	// Idle is how long the chain's flows may rest before they are forgotten.
	// Functions learn of it, so that theirs need not disagree.
	Idle Idle `json:"idle,omitzero"`
	// Disabled true takes the chain out of traffic and keeps its instances.
	Disabled bool `json:"disabled,omitempty"`
	// Distribution says which instance of an element flows go to from one of the element
	// before, where no weightsFrom does: uniform (default), to each by its weight; network,
	// so that as few as possible go to another rack (the node label rack), while each
	// still gets its share.
	Distribution Distribution `json:"distribution,omitempty"`
	// Scaling has the numbers of instances follow what the application says.
	Scaling *Scaling `json:"scaling,omitempty"`
}

// Distribution is a way to split flows between neighbouring elements.
type Distribution string

// The distributions.
const (
	DistributionUniform Distribution = "uniform"
	DistributionNetwork Distribution = "network"
)

// LabelRack is the label of nodes that says in which rack they are.
const LabelRack = "rack"

// Tier is the level of a chain.
type Tier string

// The tiers.
const (
	TierOperator Tier = "operator"
	TierTenant   Tier = "tenant"
)

// Exit says where a packet leaves after its last element.
type Exit string

// The exits.
const (
	ExitEntry Exit = "entry"
	ExitLast  Exit = "last"
	ExitNone  Exit = "none"
)

// Direction says which directions of a flow are steered.
type Direction string

// The directions.
const (
	DirectionBoth    Direction = "both"
	DirectionForward Direction = "forward"
)

// Existing says what becomes of connections older than the chain.
type Existing string

// The choices for older connections.
const (
	ExistingPass Existing = "pass"
	ExistingCut  Existing = "cut"
)

// At limits a chain to cloudlets; each does the whole chain by itself, once.
type At struct {
	Cloudlets []string `json:"cloudlets,omitempty"` // empty: all that have a gateway
}

// Endpoints is one end of a chain: "any", or exactly one of the fields.
type Endpoints struct {
	Any        bool     `json:"-"`
	Prefixes   []Prefix `json:"prefixes,omitempty"`
	Hosts      Ref      `json:"hosts,omitempty"`
	Deployment Ref      `json:"deployment,omitempty"`
}

type endpointFields Endpoints

// MarshalJSON writes "any" or the object.
func (e Endpoints) MarshalJSON() ([]byte, error) {
	if e.Any {
		return []byte(`"any"`), nil
	}
	return json.Marshal(endpointFields(e))
}

// UnmarshalJSON reads "any" or the object.
func (e *Endpoints) UnmarshalJSON(b []byte) error {
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		if s != "any" {
			return fmt.Errorf("%q is no end of a chain (write any, {prefixes: […]}, {hosts: name} or {deployment: name})", s)
		}
		*e = Endpoints{Any: true}
		return nil
	}
	var f endpointFields
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*e = Endpoints(f)
	return nil
}

// Selector matches packets in the chain's forward direction; replies match it
// turned round. Empty fields match everything.
type Selector struct {
	// Protocol: tcp, udp, icmp (with ICMPv6), or a number.
	Protocol         Protocol    `json:"protocol,omitempty"`
	SourcePorts      []PortRange `json:"sourcePorts,omitempty"`
	DestinationPorts []PortRange `json:"destinationPorts,omitempty"`
	Sources          []Prefix    `json:"sources,omitempty"`
	Destinations     []Prefix    `json:"destinations,omitempty"`
}

// Protocol is "tcp", "udp", "icmp" or an IP protocol number in text; empty is any.
type Protocol string

// UnmarshalText takes any text; Chain.Validate checks it.
func (p *Protocol) UnmarshalText(b []byte) error {
	*p = Protocol(b)
	return nil
}

// UnmarshalJSON also takes a plain number.
func (p *Protocol) UnmarshalJSON(b []byte) error { return textOrNumber(b, p) }

// Element is one step of a chain: a deployment, or the short form that makes
// one owned by the chain (named CHAIN-FUNCTION).
type Element struct {
	// Exactly one of Deployment and Function.
	Deployment Ref `json:"deployment,omitempty"`
	Function   Ref `json:"function,omitempty"`
	// Instances, Reservation, Place, Drain, Env and Files belong to the short form.
	Instances   *int            `json:"instances,omitempty"`
	Reservation Ref             `json:"reservation,omitempty"` // as a Deployment's
	Place       Place           `json:"place,omitzero"`
	Drain       Duration        `json:"drain,omitempty"` // as a Deployment's; default 30s
	Env         Env             `json:"env,omitempty"`
	Files       map[string]File `json:"files,omitempty"`
	// Mode: inline (default) or mirror (gets copies; what it emits is dropped).
	Mode Mode `json:"mode,omitempty"`
	// Select narrows the chain's; other flows skip the element.
	Select []Selector `json:"select,omitempty"`
	// Disabled true takes the element out of traffic and keeps its instances: new flows
	// pass it by, those that cross it go on as they are.
	Disabled bool `json:"disabled,omitempty"`
	// Lost: what happens to the live flows of an instance that died while
	// others live. Default: repick for state none and flow, reset for terminates.
	Lost Lost `json:"lost,omitempty"`
	// None: when no instance is ready. Default drop; mirrors always bypass.
	None None `json:"none,omitempty"`
	// Weights gives instances a share of the new flows by node name, 0 to 1000; default 1
	// each. 0: none; what is under way goes on, and the instance takes nothing over.
	Weights map[string]int `json:"weights,omitempty"`
	// WeightsFrom are other shares, 1 to 1000, for flows that come from instances on a
	// node: by the name of that node, and by this element's nodes; default as in weights.
	// So flows can stay on a node, or in a rack. Weight 0 is for all: nothing is sent there.
	WeightsFrom map[string]map[string]int `json:"weightsFrom,omitempty"`
	// Together: flow (default): each new flow chooses its instance by itself; source: all
	// flows of an address at the from end meet one instance; hosts: all flows between two
	// addresses do, whichever end begins them, as FTP's two connections.
	Together Together `json:"together,omitempty"`
	// Pair: the instances in the two cloudlets of the chain's at, first the one at the from
	// end, change packets together, each with one of the other cloudlet. What enters at one
	// end comes out at the other; None, and whether one is ready, hold for both.
	Pair bool `json:"pair,omitempty"`
}

// Selection is Select, and while the element is disabled, what no packet matches.
func (e *Element) Selection() []Selector {
	if e.Disabled {
		return []Selector{{Protocol: "none"}}
	}
	return e.Select
}

// Mode is how an element gets packets.
type Mode string

// The modes.
const (
	ModeInline Mode = "inline"
	ModeMirror Mode = "mirror"
)

// Lost is the fate of a dead instance's flows.
type Lost string

// The fates.
const (
	LostRepick Lost = "repick"
	LostReset  Lost = "reset"
)

// Together says which flows meet one instance of an element: FTP's two connections, the
// media of a SIP call, or all sessions of a client.
type Together string

// The kinds of affinity.
const (
	TogetherFlow   Together = "flow"   // the packets of a flow
	TogetherSource Together = "source" // all flows of one address at the chain's from end
	TogetherHosts  Together = "hosts"  // all flows between two addresses, whichever end begins them
)

// Apart reports whether flows are chosen for one by one.
func (t Together) Apart() bool { return t == "" || t == TogetherFlow }

// Of is the part of a tuple by which its flow's instance is chosen. The tuple runs from the
// chain's from end to its to end; flows with the same part meet one instance.
func (t Together) Of(tuple Tuple) Tuple {
	nobody := netip.IPv6Unspecified()
	switch {
	case t == TogetherSource:
		return Tuple{Src: tuple.Src, Dst: nobody}
	case t != TogetherHosts:
		return tuple
	case tuple.Dst.Less(tuple.Src):
		return Tuple{Src: tuple.Dst, Dst: tuple.Src}
	}
	return Tuple{Src: tuple.Src, Dst: tuple.Dst}
}

// None is what an element without a ready instance does to packets.
type None string

// The choices without an instance.
const (
	NoneDrop   None = "drop"
	NoneBypass None = "bypass"
)

// ChainStatus says whether traffic is steered, and for each element how many
// instances are ready and where.
type ChainStatus struct {
	// Active: rules are in force at the gateways, by their own word. It becomes true
	// when every element has had an instance ready once, and then stays true until
	// disabled: from then on None decides what happens without instances.
	Active   bool            `json:"active"`
	Elements []ElementStatus `json:"elements,omitempty"`
	// Path identifies the present list of elements in the data path; a change
	// of Through gets a new one.
	Path PathID `json:"path,omitempty"`
	// Shape is a hash of what Path stands for.
	Shape string `json:"shape,omitempty"`
	// Cloudlets are those in which Path steers traffic: their gateways have
	// acknowledged it. After a change of Through the old path does so until the new
	// one is ready.
	Cloudlets []string `json:"cloudlets,omitempty"`
	// Observed is the generation of the chain that this is about.
	Observed   int64       `json:"observed,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
	// Scaling is how far Spec.Scaling is.
	Scaling *ScalingStatus `json:"scaling,omitempty"`
}

// ElementStatus is one element as it stands.
type ElementStatus struct {
	Deployment string `json:"deployment"`
	Ready      int    `json:"ready"`
	Desired    int    `json:"desired"`
	Outdated   int    `json:"outdated,omitempty"` // how many of Ready wait for others to take over after a change
	// FunctionGeneration is that of the function which this counts for.
	FunctionGeneration int64    `json:"functionGeneration,omitempty"`
	Nodes              []string `json:"nodes,omitempty"` // where ready ones run, with repeats
	Message            string   `json:"message,omitempty"`
}

// OwnDeployments are those that the short forms in Through make, as they stand.
// They are no objects of their own: the chain is what is written, and what is
// stored.
func (c *Chain) OwnDeployments() []*Deployment {
	var list []*Deployment
	for i, e := range c.Spec.Through {
		if e.Function == "" {
			continue
		}
		d := &Deployment{TypeMeta: TypeMeta{APIVersion: APIVersion, Kind: KindDeployment}, Metadata: Metadata{
			Name: ShortDeployment(c.Metadata.Name, e.Function), Tenant: c.Metadata.Tenant, Created: c.Metadata.Created,
			UID: c.Metadata.UID, Version: c.Metadata.Version, Generation: c.Metadata.Generation,
		}}
		d.Spec = DeploymentSpec{Function: e.Function, Instances: e.Instances, Place: e.Place, Env: e.Env, Files: e.Files, Drain: e.Drain}
		d.Status.Chain = c.Metadata.Name
		if i < len(c.Status.Elements) {
			s := c.Status.Elements[i]
			d.Status.Desired, d.Status.Ready, d.Status.Outdated = s.Desired, s.Ready, s.Outdated
			d.Status.FunctionGeneration, d.Status.Observed = s.FunctionGeneration, c.Status.Observed
			if s.Message != "" {
				what := "Ready"
				if s.Outdated > 0 && s.Ready >= s.Desired {
					what = "Current"
				}
				d.Status.Conditions = []Condition{{Type: what, Status: False, Message: s.Message}}
			}
		}
		list = append(list, d)
	}
	return list
}

// Meta implements Object.
func (c *Chain) Meta() *Metadata { return &c.Metadata }

// ObjectKind implements Object.
func (c *Chain) ObjectKind() Kind { return KindChain }
