package onpath

// Tenant is a customer: a name under which hosts, functions, deployments and
// chains live.
type Tenant struct {
	TypeMeta
	Metadata Metadata   `json:"metadata"`
	Spec     TenantSpec `json:"spec"`
}

// TenantSpec is what the operator says about a tenant.
type TenantSpec struct {
	// Display is the name for people.
	Display string `json:"display,omitempty"`
	// MaxFlows caps the tenant's established flow entries on one node. 0: its share of
	// the node's table, and 262144 entries that its instances cause by themselves.
	MaxFlows int `json:"maxFlows,omitempty"`
	// MaxNewFlows is how many flows of the tenant may begin at one node in a second,
	// at most 10000000, after a rest a tenth of that at once; packets that would begin
	// more are dropped there. 0 means 100000, for tenant operator -1. -1: no limit.
	MaxNewFlows int `json:"maxNewFlows,omitempty"`
	// Addresses are those whose traffic the tenant may select: every packet that a
	// chain of the tenant selects must come from or go to one of them. What instances
	// of the tenant begin (from: {deployment: …}) is its own in any case. Empty:
	// nothing, but for tenant default: any. Tenant operator is not limited.
	Addresses []Prefix `json:"addresses,omitempty"`
	// AllowEBPF lets the tenant run ebpf functions from object files of its own.
	// They run in the kernel: the verifier keeps them from crashing it, and is
	// no boundary between tenants.
	AllowEBPF bool `json:"allowEBPF,omitempty"`
	// MetricSources are Prometheus servers that chains of the tenant may name in
	// spec.scaling.metric.url: the server asks them from where it stands. Empty: none,
	// but for tenant operator.
	MetricSources []string `json:"metricSources,omitempty"`
	// Keys are Ed25519 keys, in base64, by which the tenant signs signalling messages: who
	// has one may have modules installed on nodes with spec.leases, for traffic that the
	// tenant may select.
	Keys []PublicKey `json:"keys,omitempty"`
	// Registries are those from which functions of the tenant may have images, such as
	// ghcr.io or ghcr.io/acme. Empty: any that is named by a domain. Images that were pushed
	// to the server are allowed in any case.
	Registries []string `json:"registries,omitempty"`
	// Zones are the DNS zones in which names of the tenant's services may lie. Empty: none,
	// but for tenants default and operator: any.
	Zones []string `json:"zones,omitempty"`
	// Quota bounds what the tenant may have; what is not named is not bounded, but for
	// serviceAddresses, objects, bytes and requests.
	Quota *Quota `json:"quota,omitempty"`
}

// Quota bounds a tenant. What was there when a quota was lowered stays, and does not grow.
type Quota struct {
	Chains int `json:"chains,omitempty"`
	// Instances that deployments and chains ask for, in all cloudlets together.
	Instances int `json:"instances,omitempty"`
	Claims    int `json:"claims,omitempty"`
	// ServiceAddresses are those of the server's public pools that services ask for: one of
	// each pool in each cloudlet. 0 means 100, for tenant operator -1. -1: no limit.
	ServiceAddresses int `json:"serviceAddresses,omitempty"`
	// Capacity that these instances ask for, together.
	Capacity Resources `json:"capacity,omitzero"`
	// Objects that users of the tenant write, and their bytes as the server stores them, together.
	// 0 means 10000 objects and 64 MiB, for tenant operator no limit. Objects -1: no limit; Bytes
	// has none either from 1Ti on.
	Objects int  `json:"objects,omitempty"`
	Bytes   Size `json:"bytes,omitempty"`
	// Secrets is how many bytes all values of the tenant's secrets may have.
	Secrets Size `json:"secrets,omitempty"`
	// Requests a second that users and tokens of the tenant may send the server, together.
	// 0 means 100 for each of them, and 1000 at once after a rest. -1: no limit.
	Requests int `json:"requests,omitempty"`
}

// What parts of a Quota that are 0 mean, but for tenant operator.
const (
	DefaultServiceAddresses = 100
	DefaultObjects          = 10_000
	DefaultBytes            = Size(64 << 20)
)

// Meta implements Object.
func (t *Tenant) Meta() *Metadata { return &t.Metadata }

// ObjectKind implements Object.
func (t *Tenant) ObjectKind() Kind { return KindTenant }
