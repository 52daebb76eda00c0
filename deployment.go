package onpath

// Deployment is the instances of one function that share traffic.
type Deployment struct {
	TypeMeta
	Metadata Metadata         `json:"metadata"`
	Spec     DeploymentSpec   `json:"spec"`
	Status   DeploymentStatus `json:"status,omitzero"`
}

// DeploymentSpec says which function, how many instances, and where.
type DeploymentSpec struct {
	Function Ref `json:"function"`
	// Instances in each cloudlet, at most 128; default 1.
	Instances *int `json:"instances,omitempty"`
	// Reservation, of the same tenant, gives the instances their number, nodes and size
	// of the moment; while it does not run there are none, and chains through the
	// deployment are out of traffic.
	Reservation Ref   `json:"reservation,omitempty"`
	Place       Place `json:"place,omitzero"`
	// Env and Files are added to the function's; equal keys win over it.
	Env   Env             `json:"env,omitempty"`
	Files map[string]File `json:"files,omitempty"`
	// Drain is how long the flows of an instance that goes on purpose may take
	// to end; default 30s.
	Drain Duration `json:"drain,omitempty"`
	// OnDemand: instances sleep until their first packet, and again when none comes.
	OnDemand *OnDemand `json:"onDemand,omitempty"`
}

// Place limits where instances run.
type Place struct {
	// Cloudlets; empty: those of the chains that use the deployment.
	Cloudlets []string `json:"cloudlets,omitempty"`
	// Nodes: labels that a node must have; the label "name" is the node's name.
	// Instances on other nodes move, as soon as there are others to take over.
	Nodes map[string]string `json:"nodes,omitempty"`
	// Spread: node (default): as few instances of this deployment on one node as possible; none: pack.
	Spread spread `json:"spread,omitempty"`
}

// spread is a placement preference.
type spread string

// The spreads.
const (
	SpreadNode spread = "node"
	SpreadNone spread = "none"
)

// DeploymentStatus counts instances.
type DeploymentStatus struct {
	Desired int `json:"desired"`
	Ready   int `json:"ready"`
	// Outdated is how many of Ready wait for others to take over after a change.
	Outdated int `json:"outdated,omitempty"`
	// Observed is the generation of the deployment that this is about,
	// FunctionGeneration that of its function.
	Observed           int64 `json:"observed,omitempty"`
	FunctionGeneration int64 `json:"functionGeneration,omitempty"`
	// Chain is set in what Chain.OwnDeployments returns: the chain that the
	// deployment belongs to.
	Chain string `json:"chain,omitempty"`
	// Scaled is the number of instances that chains which scale the deployment want; it
	// holds instead of Spec.Instances.
	Scaled     *int        `json:"scaled,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// Meta implements Object.
func (d *Deployment) Meta() *Metadata { return &d.Metadata }

// ObjectKind implements Object.
func (d *Deployment) ObjectKind() Kind { return KindDeployment }
