package onpath

// Preview says what changes of objects would do to instances and rules.
type Preview struct {
	Instances []InstancePreview `json:"instances,omitempty"`
	Rules     []RulesPreview    `json:"rules,omitempty"`
	// Notes say in words what else is worth knowing before: what does not fit
	// yet, which connections are cut.
	Notes []string `json:"notes,omitempty"`
}

// InstancePreview is an instance that would begin, end or change.
type InstancePreview struct {
	Action     PreviewAction `json:"action"`
	Tenant     string        `json:"tenant"`
	Deployment string        `json:"deployment"`
	Name       string        `json:"name,omitempty"` // of one that exists
	Node       string        `json:"node,omitempty"`
	Reason     string        `json:"reason,omitempty"`
}

// PreviewAction is what would happen to an instance.
type PreviewAction string

// The actions.
const (
	PreviewStart PreviewAction = "start"
	PreviewDrain PreviewAction = "drain" // get no new flows, then stop
	PreviewStop  PreviewAction = "stop"
)

// RulesPreview is how a node's rules would change.
type RulesPreview struct {
	Node    string `json:"node"`
	Added   int    `json:"added"`
	Removed int    `json:"removed"`
}
