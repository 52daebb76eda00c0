package onpath

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// APIVersion is the version that every resource file names.
const APIVersion = "onpath/v1alpha1"

// OperatorTenant is the tenant that stands for the operator: it owns chains of
// tier operator and the functions shared with everybody. DefaultTenant is
// meant where metadata.tenant is left out.
const (
	OperatorTenant = "operator"
	DefaultTenant  = "default"
)

// Kind names a type of resource.
type Kind string

// The kinds of this version. Instance and Event are read-only for users.
const (
	KindTenant      Kind = "Tenant"
	KindCloudlet    Kind = "Cloudlet"
	KindNode        Kind = "Node"
	KindHosts       Kind = "Hosts"
	KindFunction    Kind = "Function"
	KindDeployment  Kind = "Deployment"
	KindChain       Kind = "Chain"
	KindMeasurement Kind = "Measurement"
	KindAccelerator Kind = "Accelerator"
	KindInstance    Kind = "Instance"
	KindLease       Kind = "Lease"
	KindEvent       Kind = "Event"
	KindPriceList   Kind = "PriceList"
	KindReservation Kind = "Reservation"
	KindPrefixClaim Kind = "PrefixClaim"
	KindWebhook     Kind = "Webhook"
	KindService     Kind = "Service"
	KindSecret      Kind = "Secret"
)

// Kinds lists every kind in the order in which objects refer to each other: an
// object only names objects of its own or an earlier kind.
func Kinds() []Kind {
	return []Kind{KindTenant, KindCloudlet, KindNode, KindPriceList, KindReservation, KindPrefixClaim, KindWebhook, KindHosts,
		KindSecret,
		KindFunction,
		KindDeployment, KindService, KindChain, KindMeasurement, KindAccelerator, KindInstance, KindLease, KindEvent}
}

// Tenanted reports whether objects of kind k belong to a tenant; the others
// (Tenant, Cloudlet, Node, PriceList) belong to the operator and their metadata.tenant is
// empty.
func (k Kind) Tenanted() bool {
	switch k {
	case KindTenant, KindCloudlet, KindNode, KindPriceList:
		return false
	}
	return true
}

// ReadOnly reports whether only onpath itself writes objects of kind k.
func (k Kind) ReadOnly() bool { return k == KindInstance || k == KindLease || k == KindEvent }

// Plural is the lower-case plural used in URLs and accepted by the CLI
// ("chains"; Hosts stays "hosts").
func (k Kind) Plural() string {
	s := strings.ToLower(string(k))
	if strings.HasSuffix(s, "s") {
		return s
	}
	return s + "s"
}

// ParseKind finds a kind by its name, plural or any case of either; ok is false
// for a word that is none.
func ParseKind(s string) (Kind, bool) {
	for _, k := range Kinds() {
		if strings.EqualFold(s, string(k)) || strings.EqualFold(s, k.Plural()) {
			return k, true
		}
	}
	return "", false
}

// Key identifies an object in the store.
type Key struct {
	Kind   Kind
	Tenant string // empty for operator-owned kinds
	Name   string
}

// String is "chain default/web" or "node fra1-gw1".
func (k Key) String() string {
	if k.Tenant == "" {
		return strings.ToLower(string(k.Kind)) + " " + k.Name
	}
	return strings.ToLower(string(k.Kind)) + " " + k.Tenant + "/" + k.Name
}

// TypeMeta is the first two lines of every resource.
type TypeMeta struct {
	APIVersion string `json:"apiVersion"`
	Kind       Kind   `json:"kind"`
}

// Metadata names an object. UID, Version, Generation and Created are set by the
// server; what a file says there is ignored.
type Metadata struct {
	Name   string            `json:"name"`
	Tenant string            `json:"tenant,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`

	// UID tells a re-created object from its predecessor of the same name.
	UID string `json:"uid,omitempty"`
	// Version changes with every write. A write through the API that names an
	// older one is refused with CodeConflict; zero means "whatever is there". Files
	// that are applied hold what is wanted, whatever is there: it is ignored in them.
	Version int64 `json:"version,omitempty"`
	// Generation counts the changes of spec.
	Generation int64     `json:"generation,omitempty"`
	Created    time.Time `json:"created,omitzero"`
}

// Object is any resource.
type Object interface {
	// Meta is the object's own metadata, to read and to change.
	Meta() *Metadata
	// ObjectKind is the constant kind of the Go type.
	ObjectKind() Kind
	// Validate checks the object by itself, without looking at others. It
	// also fills in defaults, so that equal meanings have equal contents. A
	// returned error is an Errors.
	Validate() error
}

// KeyOf is the key under which o is stored.
func KeyOf(o Object) Key {
	m := o.Meta()
	k := Key{Kind: o.ObjectKind(), Name: m.Name}
	if k.Kind.Tenanted() {
		k.Tenant = m.Tenant
		if k.Tenant == "" {
			k.Tenant = DefaultTenant
		}
	}
	return k
}

// New makes an empty object of kind k, with its TypeMeta set.
func New(k Kind) (Object, error) {
	t := TypeMeta{APIVersion: APIVersion, Kind: k}
	switch k {
	case KindTenant:
		return &Tenant{TypeMeta: t}, nil
	case KindCloudlet:
		return &Cloudlet{TypeMeta: t}, nil
	case KindNode:
		return &Node{TypeMeta: t}, nil
	case KindHosts:
		return &Hosts{TypeMeta: t}, nil
	case KindFunction:
		return &Function{TypeMeta: t}, nil
	case KindDeployment:
		return &Deployment{TypeMeta: t}, nil
	case KindChain:
		return &Chain{TypeMeta: t}, nil
	case KindMeasurement:
		return &Measurement{TypeMeta: t}, nil
	case KindAccelerator:
		return &Accelerator{TypeMeta: t}, nil
	case KindInstance:
		return &Instance{TypeMeta: t}, nil
	case KindLease:
		return &Lease{TypeMeta: t}, nil
	case KindEvent:
		return &Event{TypeMeta: t}, nil
	case KindPriceList:
		return &PriceList{TypeMeta: t}, nil
	case KindReservation:
		return &Reservation{TypeMeta: t}, nil
	case KindPrefixClaim:
		return &PrefixClaim{TypeMeta: t}, nil
	case KindWebhook:
		return &Webhook{TypeMeta: t}, nil
	case KindSecret:
		return &Secret{TypeMeta: t}, nil
	case KindService:
		return &Service{TypeMeta: t}, nil
	}
	return nil, Errorf(CodeInvalid, "there is no kind %q", k)
}

// Decode reads one object from its JSON form. It is lenient about unknown
// fields (a newer server may have written them); files are read by the strict
// decoder of api/manifest.
func Decode(data []byte) (Object, error) {
	var t TypeMeta
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("decode object: %w", err)
	}
	o, err := New(t.Kind)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, o); err != nil {
		return nil, fmt.Errorf("decode %s: %w", t.Kind, err)
	}
	return o, nil
}

// Clone copies o deeply.
func Clone[T Object](o T) T {
	data, err := json.Marshal(o)
	if err != nil {
		panic(fmt.Sprintf("onpath: clone %s: %v", KeyOf(o), err)) // every Object marshals, or the type is wrong
	}
	c, err := Decode(data)
	if err != nil {
		panic(fmt.Sprintf("onpath: clone %s: %v", KeyOf(o), err))
	}
	return c.(T)
}

// Ref names an object of a known kind: "name" in the referring object's tenant,
// or "tenant/name".
type Ref string

// Resolve splits a reference, seen from an object of tenant own.
func (r Ref) Resolve(own string) (tenant, name string) {
	if t, n, ok := strings.Cut(string(r), "/"); ok {
		return t, n
	}
	return own, string(r)
}

// Condition is one statement about an object, in plain words.
type Condition struct {
	// Type is what is stated: "Ready", "Active", "Placed".
	Type string `json:"type"`
	// Status is true, false or unknown.
	Status ConditionStatus `json:"status"`
	// Reason is one CamelCase word for programs.
	Reason string `json:"reason,omitempty"`
	// Message is for people, and says what to do where something is wrong.
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Until is when it is to change by itself, where that is known.
	Until time.Time `json:"until,omitzero"`
}

// ConditionStatus is "true", "false" or "unknown".
type ConditionStatus string

// The three condition statuses.
const (
	True    ConditionStatus = "true"
	False   ConditionStatus = "false"
	Unknown ConditionStatus = "unknown"
)

// ReasonConfigRefused is the reason of a condition Current that is false since a
// running ebpf function did not take the configuration it was told.
const ReasonConfigRefused = "ConfigRefused"

// Reasons of conditions that stay as they are until somebody acts; ReasonNotReserved does
// unless the condition says until when.
const (
	ReasonImpossible   = "Impossible"   // a chain cannot be as it is written
	ReasonNotOwned     = "NotOwned"     // a chain selects what is not its tenant's
	ReasonNoFunction   = "NoFunction"   // there is no such function
	ReasonNoGateway    = "NoGateway"    // no node has an uplink
	ReasonNotAccepted  = "NotAccepted"  // the gateways wait for the operator
	ReasonUnplaceable  = "Unplaceable"  // no node can run an instance, however much room gets free
	ReasonImageMissing = "ImageMissing" // the image does not exist
	ReasonNotReserved  = "NotReserved"  // the reservation does not run
)

// SetCondition replaces the condition of c's type in list, or adds it; Since
// stays as it was unless the status changed. It reports whether anything but
// Since differs.
func SetCondition(list *[]Condition, c Condition) bool {
	for i, old := range *list {
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.Since = old.Since
		}
		(*list)[i] = c
		old.Since, c.Since = time.Time{}, time.Time{}
		return old != c
	}
	*list = append(*list, c)
	return true
}
