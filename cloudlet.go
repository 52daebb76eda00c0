package onpath

// Cloudlet is a named group of nodes at one place (PacketCloud §3: a PoP).
type Cloudlet struct {
	TypeMeta
	Metadata Metadata       `json:"metadata"`
	Spec     CloudletSpec   `json:"spec"`
	Status   CloudletStatus `json:"status,omitzero"`
}

// CloudletSpec is what the operator says about a cloudlet.
type CloudletSpec struct {
	// Location is for people and, later, for choosing the nearest instance.
	Location Location `json:"location,omitzero"`
	// OperatorShare is the part of every node's capacity, in percent, that
	// only instances of tenant operator may use.
	OperatorShare int `json:"operatorShare,omitempty"`
	// Prefixes are the addresses of users that enter the network here: reservations near
	// them go here first.
	Prefixes []Prefix `json:"prefixes,omitempty"`
	// Reservations required: tenants' instances run only inside reservations, the
	// operator's others only in its share; ebpf functions need none. Default none. It is
	// refused while instances run that may not then.
	Reservations reservationRule `json:"reservations,omitempty"`
	// Isolation is what instances of tenants may have here, beside the operator's; default:
	// all that functions may ask for.
	Isolation *Isolation `json:"isolation,omitempty"`
}

// Isolation bounds what instances of tenants get of a node.
type Isolation struct {
	// Capabilities that a function may ask for, such as NET_RAW. Empty: none.
	Capabilities []string `json:"capabilities,omitempty"`
	// UserNamespaces say whether root in a container is nobody outside it; default possible.
	UserNamespaces UserNamespaceRule `json:"userNamespaces,omitempty"`
}

// UserNamespaceRule says which new containers of tenants, other than default and operator,
// have a user namespace of their own.
type UserNamespaceRule string

// The rules about user namespaces.
const (
	UserNamespacesPossible UserNamespaceRule = "possible" // where the node can; onpath doctor says whether
	UserNamespacesRequired UserNamespaceRule = "required" // elsewhere none starts
	UserNamespacesNever    UserNamespaceRule = "never"
)

// reservationRule says whether instances need reservations.
type reservationRule string

// The rules about reservations.
const (
	ReservationsNone     reservationRule = "none"
	ReservationsRequired reservationRule = "required"
)

// Location is a place on earth.
type Location struct {
	City      string  `json:"city,omitempty"`
	Latitude  float64 `json:"latitude,omitempty"`  // degrees north
	Longitude float64 `json:"longitude,omitempty"` // degrees east
}

// CloudletStatus sums up the cloudlet's nodes.
type CloudletStatus struct {
	Nodes      int         `json:"nodes"`
	ReadyNodes int         `json:"readyNodes"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// Meta implements Object.
func (c *Cloudlet) Meta() *Metadata { return &c.Metadata }

// ObjectKind implements Object.
func (c *Cloudlet) ObjectKind() Kind { return KindCloudlet }
