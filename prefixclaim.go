package onpath

import (
	"net/netip"
	"slices"
	"time"
)

// PrefixClaim is a tenant's word that a prefix is the tenant's own, and what proves it.
// Chains of a tenant may select what comes from or goes to the tenant's addresses and
// prefixes of proved claims (PacketCloud §3.3.1).
type PrefixClaim struct {
	TypeMeta
	Metadata Metadata          `json:"metadata"`
	Spec     PrefixClaimSpec   `json:"spec"`
	Status   PrefixClaimStatus `json:"status,omitzero"`
}

// PrefixClaimSpec says what is claimed, and how it is proved.
type PrefixClaimSpec struct {
	// Prefix is the prefix, or with proof password the single address, that is claimed.
	Prefix Prefix `json:"prefix"`
	// Method says who vouches: the operator, by spec.addresses of the Tenant; or the
	// address itself, by a password.
	Method ClaimMethod `json:"proof"`
	// For is how long a proof by password lasts, 5s to 24h; default 1h. It is asked for
	// again at the half of that.
	For Duration `json:"for,omitempty"`
}

// ClaimMethod is a way to prove a claim.
type ClaimMethod string

// The proofs.
const (
	// ByOperator: the prefix lies within spec.addresses of the Tenant.
	ByOperator ClaimMethod = "operator"
	// ByPassword: http://ADDRESS/.well-known/onpath shows the claim's password to the
	// gateways of two cloudlets, of one where there is but one (NetServ §3.2, reverse
	// routability).
	ByPassword ClaimMethod = "password"
)

// ClaimState says how a claim stands.
type ClaimState string

// The states of a claim.
const (
	ClaimAsked    ClaimState = "asked"    // not proved yet
	ClaimProved   ClaimState = "proved"   // until Status.Until
	ClaimExpiring ClaimState = "expiring" // proved until Status.Until; the next proof failed
	ClaimLost     ClaimState = "lost"     // was proved; what it gave is taken back
	ClaimRefused  ClaimState = "refused"  // what is there proves that it is not the tenant's
)

// PrefixClaimStatus says how a claim stands, and by what evidence.
type PrefixClaimStatus struct {
	State ClaimState `json:"state,omitempty"`
	// Password is what the address has to show, on a line of its own; it is of this claim
	// alone.
	Password string `json:"password,omitempty"`
	// Prefix is what the password has proved.
	Prefix Prefix `json:"prefix,omitzero"`
	// Since is when it was first proved, without a gap until now; the older of two claims
	// for one prefix wins.
	Since time.Time `json:"since,omitzero"`
	// Until is when the proof ends; zero: with its cause.
	Until time.Time `json:"until,omitzero"`
	// Checked is when it was last asked for the proof.
	Checked time.Time `json:"checked,omitzero"`
	// Evidence says who saw what.
	Evidence string `json:"evidence,omitempty"`
}

// Bounds and defaults of claims.
const (
	DefaultClaimLife = Duration(time.Hour)
	MinClaimLife     = Duration(30 * time.Second) // gateways are asked twice in a life
	MaxClaimLife     = Duration(24 * time.Hour)
)

// ClaimPath is where an address shows the password of a claim.
const ClaimPath = "/.well-known/onpath"

// Meta implements Object.
func (p *PrefixClaim) Meta() *Metadata { return &p.Metadata }

// ObjectKind implements Object.
func (p *PrefixClaim) ObjectKind() Kind { return KindPrefixClaim }

// Validate implements Object.
func (p *PrefixClaim) Validate() error {
	v := begin(p, &p.TypeMeta)
	s := &p.Spec
	enum(v, "spec.proof", &s.Method, "", ByOperator, ByPassword)
	switch n := s.Prefix.Prefix; {
	case !n.IsValid():
		v.add("spec.prefix", "write an address or a prefix, such as 198.51.100.0/24", "is missing")
	case n != n.Masked():
		v.add("spec.prefix", "write "+n.Masked().String(), "%s has bits behind its length", n)
	case n.Bits() > 0 && !Claimable(n.Addr()):
		v.add("spec.prefix", "", "%s is nobody's: loopback, link-local, multicast and unspecified addresses are not claimed", s.Prefix)
	case s.Method == ByPassword && !n.IsSingleIP():
		v.add("spec.prefix", "write one claim for each address, or proof: operator", "a password proves single addresses only, not %s", n)
	}
	if s.Method == ByPassword {
		byDefault(&s.For, DefaultClaimLife)
		quantity(v, "spec.for", s.For, MinClaimLife, MaxClaimLife)
	} else if s.For != 0 {
		v.add("spec.for", "take it out", "a claim by the operator's word lasts as long as that")
	}
	return v.err()
}

// Claimable reports whether an address can be somebody's.
func Claimable(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

// PasswordRequest has a node ask an address for the password of a claim.
type PasswordRequest struct {
	Address  netip.Addr `json:"address"`
	Password string     `json:"password"`
}

// PasswordAnswer is what the node saw.
type PasswordAnswer struct {
	Proved bool `json:"proved"`
	// Wrong: something answered, and it is not the password.
	Wrong bool   `json:"wrong,omitempty"`
	Saw   string `json:"saw"`
}

// ProvedAt reports whether a proof by password counts at a time: one of another prefix,
// which the claim had before, does not.
func (p *PrefixClaim) ProvedAt(now time.Time) bool {
	s := &p.Status
	return (s.State == ClaimProved || s.State == ClaimExpiring) && now.Before(s.Until) && s.Prefix == p.Spec.Prefix
}

// Given reports whether the operator's word has the claim's prefix.
func (p *PrefixClaim) Given(t *Tenant) bool {
	return t != nil && slices.ContainsFunc(t.Spec.Addresses, func(a Prefix) bool {
		return a.Bits() <= p.Spec.Prefix.Bits() && a.Contains(p.Spec.Prefix.Addr())
	})
}
