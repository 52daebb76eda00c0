// Package rights decides who may do what through the API. All that is asked of the API
// passes Authorize.
package rights

import (
	"context"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// Verb is what somebody wants to do; it completes "… may not".
type Verb string

// The verbs.
const (
	Any           Verb = "ask"  // whoever they are, strangers too
	Self          Verb = "show" // about themselves
	Read          Verb = "read"
	List          Verb = "list"
	Write         Verb = "write"
	Delete        Verb = "delete"
	Apply         Verb = "apply" // each object is a Write of its own
	Watch         Verb = "watch"
	Trace         Verb = "trace"
	Verify        Verb = "verify"
	Confirm       Verb = "confirm or undo what waits for it"
	Logs          Verb = "read the output of"
	Traffic       Verb = "see the traffic"
	Notifications Verb = "see notifications"
	Audit         Verb = "see the log"
	Exec          Verb = "run commands in"
	Capture       Verb = "capture at"
	Flows         Verb = "see the flows at"
	Pull          Verb = "use the images"
	Push          Verb = "push images"
	Session       Verb = "be a node"
	Secrets       Verb = "have the secrets of"
	Nodes         Verb = "see what whole nodes count"
	Fault         Verb = "cause faults"
	Trial         Verb = "try the network between nodes"
	Backup        Verb = "back up the server from elsewhere than its own machine"
	Tokens        Verb = "make, see or delete join tokens"
	Revoke        Verb = "revoke certificates"
	Rotate        Verb = "rotate the server's keys"
	Metrics       Verb = "read metrics"
	Move          Verb = "move"
	Pool          Verb = "see what nodes have promised"
	Account       Verb = "see accounts and invoices"
	Money         Verb = "credit accounts and check the ledger"
)

// ofTenant are the verbs that a tenant's users have for what is the tenant's.
var ofTenant = map[Verb]bool{
	Read: true, List: true, Watch: true, Write: true, Delete: true, Apply: true,
	Trace: true, Verify: true,
	Account: true, Confirm: true, Logs: true, Notifications: true, Traffic: true, Exec: true, Audit: true,
	Capture: true, Flows: true,
	Pull: true, Push: true,
}

// ofViewer are those of them that change nothing, and show no packets.
var ofViewer = map[Verb]bool{
	Read: true, List: true, Watch: true, Trace: true, Verify: true, Account: true, Logs: true,
	Notifications: true, Traffic: true, Audit: true,
}

// inKinds reports whether a token that is for some kinds is for what is asked: verbs that
// are about no kind are not, but apply, of which each object is asked for by itself.
func inKinds(who auth.Identity, v Verb, kind onpath.Kind) bool {
	return len(who.Kinds) == 0 || v == Self || v == Any || v == Apply || slices.Contains(who.Kinds, kind)
}

// ofNode are the verbs that nodes have.
var ofNode = map[Verb]bool{Session: true, Pull: true, Secrets: true}

// Authorize decides whether somebody may do something: with one object; with (name
// "") the objects of a kind; or with (kind "") what is no object. A tenant of "" is
// the asker's own, or everybody's if the asker is an operator. All that is asked of
// the API passes here.
func Authorize(who auth.Identity, v Verb, kind onpath.Kind, tenant, name string) error {
	if k := (onpath.Key{Kind: kind, Tenant: tenant, Name: name}); (v == Write || v == Delete) && kind.ReadOnly() {
		return ReadOnly(k)
	}
	if !inKinds(who, v, kind) {
		return Forbidden(who, doing(v, kind, tenant, name)+" with this token")
	}
	switch who.Role {
	case auth.RoleOperator:
		if v != Session && v != Backup && v != Secrets || who.Credential == auth.LocalOperator().Credential {
			return nil
		}
	case auth.RoleNode:
		if ofNode[v] || v == Self {
			return nil
		}
	case auth.RoleViewer:
		if v == Self || ofViewer[v] && ownScope(who, v, kind, tenant, name) {
			return nil
		}
	case auth.RoleUser:
		if v == Self || ofTenant[v] && ownScope(who, v, kind, tenant, name) {
			return nil
		}
	}
	if v == Any {
		return nil
	}
	return Forbidden(who, doing(v, kind, tenant, name))
}

// ownScope reports whether what a user asks for is his tenant's.
func ownScope(who auth.Identity, v Verb, kind onpath.Kind, tenant, name string) bool {
	switch {
	case kind == "" || kind.Tenanted():
		return tenant == who.Tenant || tenant == "" && name == ""
	case kind == onpath.KindPriceList:
		return v == Read || v == List
	case kind == onpath.KindTenant: // the Tenant itself
		return v == Read && name == who.Tenant || v == List && (tenant == "" || tenant == who.Tenant)
	}
	return false
}

func doing(v Verb, kind onpath.Kind, tenant, name string) string {
	switch {
	case kind != "" && name != "":
		return string(v) + " " + onpath.Key{Kind: kind, Tenant: tenant, Name: name}.String()
	case kind != "":
		v += Verb(" " + kind.Plural())
	}
	if tenant != "" {
		return string(v) + " of tenant " + tenant
	}
	return string(v)
}

// May is authorize for the caller of the request.
func May(ctx context.Context, v Verb, k onpath.Key) error {
	return Authorize(WhoIs(ctx), v, k.Kind, k.Tenant, k.Name)
}

func Forbidden(who auth.Identity, doing string) error {
	e := onpath.Errorf(onpath.CodeForbidden, "%s %s may not %s", who.Role, who.Name, doing)
	e.Remedy = "ask an operator"
	return e
}

// ScopeTenant is the tenant to which a list, a watch, a trace or a proof is limited, given
// the one asked for ("": all that the asker may see).
func ScopeTenant(ctx context.Context, asked string) string {
	if who := WhoIs(ctx); who.Tenanted() {
		return who.Tenant
	}
	return asked
}

// OwnTenant is the tenant meant where a name comes without one.
func OwnTenant(ctx context.Context) string {
	if who := WhoIs(ctx); who.Tenanted() {
		return who.Tenant
	}
	return onpath.DefaultTenant
}

type identityKey struct{}

// WithIdentity is the context of a request that who makes.
func WithIdentity(ctx context.Context, who auth.Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, who)
}

// WhoIs is who makes a request.
func WhoIs(ctx context.Context) auth.Identity {
	i, _ := ctx.Value(identityKey{}).(auth.Identity)
	return i
}

// ReadOnly says why k is not a user's to write.
func ReadOnly(k onpath.Key) error {
	e := onpath.Errorf(onpath.CodeForbidden, "%s are written by onpath itself", k.Kind.Plural())
	e.Object = k.String()
	switch k.Kind {
	case onpath.KindInstance:
		e.Message, e.Remedy = "instances are made by onpath", "scale or delete its deployment, or the chain whose short form made that"
	case onpath.KindLease:
		e.Remedy = "they end with their time, or by onpath signal remove"
	case onpath.KindEvent:
		e.Remedy = "the oldest go by themselves"
	}
	return e
}
