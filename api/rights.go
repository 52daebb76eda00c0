package api

import (
	"context"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// verb is what somebody wants to do; it completes "… may not".
type verb string

// The verbs.
const (
	verbAny           verb = "ask"  // whoever they are, strangers too
	verbSelf          verb = "show" // about themselves
	verbRead          verb = "read"
	verbList          verb = "list"
	verbWrite         verb = "write"
	verbDelete        verb = "delete"
	verbApply         verb = "apply" // each object is a verbWrite of its own
	verbWatch         verb = "watch"
	verbTrace         verb = "trace"
	verbVerify        verb = "verify"
	verbConfirm       verb = "confirm or undo what waits for it"
	verbLogs          verb = "read the output of"
	verbTraffic       verb = "see the traffic"
	verbNotifications verb = "see notifications"
	verbAudit         verb = "see the log"
	verbExec          verb = "run commands in"
	verbCapture       verb = "capture at"
	verbFlows         verb = "see the flows at"
	verbPull          verb = "use the images"
	verbPush          verb = "push images"
	verbSession       verb = "be a node"
	verbSecrets       verb = "have the secrets of"
	verbNodes         verb = "see what whole nodes count"
	verbFault         verb = "cause faults"
	verbBackup        verb = "back up the server from elsewhere than its own machine"
	verbTokens        verb = "make, see or delete join tokens"
	verbRevoke        verb = "revoke certificates"
	verbMetrics       verb = "read metrics"
	verbMove          verb = "move"
	verbPool          verb = "see what nodes have promised"
	verbAccount       verb = "see accounts and invoices"
	verbMoney         verb = "credit accounts and check the ledger"
)

// ofTenant are the verbs that a tenant's users have for what is the tenant's.
var ofTenant = map[verb]bool{
	verbRead: true, verbList: true, verbWatch: true, verbWrite: true, verbDelete: true, verbApply: true,
	verbTrace: true, verbVerify: true,
	verbAccount: true, verbConfirm: true, verbLogs: true, verbNotifications: true, verbTraffic: true, verbExec: true, verbAudit: true,
	verbCapture: true, verbFlows: true,
	verbPull: true, verbPush: true,
}

// ofViewer are those of them that change nothing, and show no packets.
var ofViewer = map[verb]bool{
	verbRead: true, verbList: true, verbWatch: true, verbTrace: true, verbVerify: true, verbAccount: true, verbLogs: true,
	verbNotifications: true, verbTraffic: true, verbAudit: true,
}

// inKinds reports whether a token that is for some kinds is for what is asked: verbs that
// are about no kind are not, but apply, of which each object is asked for by itself.
func inKinds(who auth.Identity, v verb, kind onpath.Kind) bool {
	return len(who.Kinds) == 0 || v == verbSelf || v == verbAny || v == verbApply || slices.Contains(who.Kinds, kind)
}

// ofNode are the verbs that nodes have.
var ofNode = map[verb]bool{verbSession: true, verbPull: true, verbSecrets: true}

// authorize decides whether somebody may do something: with one object; with (name
// "") the objects of a kind; or with (kind "") what is no object. A tenant of "" is
// the asker's own, or everybody's if the asker is an operator. All that is asked of
// the API passes here.
func authorize(who auth.Identity, v verb, kind onpath.Kind, tenant, name string) error {
	if k := (onpath.Key{Kind: kind, Tenant: tenant, Name: name}); (v == verbWrite || v == verbDelete) && kind.ReadOnly() {
		return readOnly(k)
	}
	if !inKinds(who, v, kind) {
		return forbidden(who, doing(v, kind, tenant, name)+" with this token")
	}
	switch who.Role {
	case auth.RoleOperator:
		if v != verbSession && v != verbBackup && v != verbSecrets || who.Credential == auth.LocalOperator().Credential {
			return nil
		}
	case auth.RoleNode:
		if ofNode[v] || v == verbSelf {
			return nil
		}
	case auth.RoleViewer:
		if v == verbSelf || ofViewer[v] && ownScope(who, v, kind, tenant, name) {
			return nil
		}
	case auth.RoleUser:
		if v == verbSelf || ofTenant[v] && ownScope(who, v, kind, tenant, name) {
			return nil
		}
	}
	if v == verbAny {
		return nil
	}
	return forbidden(who, doing(v, kind, tenant, name))
}

// ownScope reports whether what a user asks for is his tenant's.
func ownScope(who auth.Identity, v verb, kind onpath.Kind, tenant, name string) bool {
	switch {
	case kind == "" || kind.Tenanted():
		return tenant == who.Tenant || tenant == "" && name == ""
	case kind == onpath.KindPriceList:
		return v == verbRead || v == verbList
	case kind == onpath.KindTenant: // the Tenant itself
		return v == verbRead && name == who.Tenant || v == verbList && (tenant == "" || tenant == who.Tenant)
	}
	return false
}

func doing(v verb, kind onpath.Kind, tenant, name string) string {
	switch {
	case kind != "" && name != "":
		return string(v) + " " + onpath.Key{Kind: kind, Tenant: tenant, Name: name}.String()
	case kind != "":
		v += verb(" " + kind.Plural())
	}
	if tenant != "" {
		return string(v) + " of tenant " + tenant
	}
	return string(v)
}

// may is authorize for whoever makes the request.
func may(ctx context.Context, v verb, k onpath.Key) error {
	return authorize(whoIs(ctx), v, k.Kind, k.Tenant, k.Name)
}

func forbidden(who auth.Identity, doing string) error {
	e := onpath.Errorf(onpath.CodeForbidden, "%s %s may not %s", who.Role, who.Name, doing)
	e.Remedy = "ask an operator"
	return e
}

// mayAsk looks at what an object asks for: the operator's tier, files of the
// nodes, and other tenants' images are not for users.
func (s *Server) mayAsk(ctx context.Context, o onpath.Object) error {
	who := whoIs(ctx)
	if who.Role == auth.RoleOperator {
		return nil
	}
	switch o := o.(type) {
	case *onpath.Chain:
		if o.Spec.Tier == onpath.TierOperator {
			return forbidden(who, "have a chain of tier operator")
		}
	case *onpath.Function:
		if o.Spec.Traits().KernelCode {
			return s.mayRunCode(ctx, who, o.Metadata.Tenant)
		}
		for _, image := range imagesOf(o) {
			if err := s.mayUseImage(ctx, who, o.Metadata.Tenant, image); err != nil {
				return err
			}
		}
	}
	return nil
}

// mayUseImage: a user's images come from registries, from his tenant or the operator.
func (s *Server) mayUseImage(ctx context.Context, who auth.Identity, owner, image string) error {
	repo, ours := strings.CutPrefix(image, onpath.ImageHost+"/")
	tenant, _, _ := strings.Cut(repo, "/")
	switch {
	case image == onpath.HostImage:
		return forbidden(who, "use image: host, which shows the nodes' files")
	case onpath.LocalImage(image):
		e := forbidden(who, "use an image by its path, which would be a file of the nodes")
		if oe, ok := e.(*onpath.Error); ok {
			oe.Remedy = "`onpath apply` pushes the file beside the YAML to the server; or name an image in a registry"
		}
		return e
	case ours && tenant != who.Tenant && tenant != onpath.OperatorTenant:
		return forbidden(who, "use the images of tenant "+tenant)
	case ours:
		return nil
	}
	o, err := s.o.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: owner})
	if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
		return err
	}
	t, _ := o.(*onpath.Tenant)
	if why := onpath.BadRegistry(image, t); why != "" {
		e := forbidden(who, "use image "+image+": "+why)
		if oe, ok := e.(*onpath.Error); ok {
			oe.Remedy = "push it to the server (onpath apply of a file), or ask an operator for the registry " +
				"(spec.registries of the Tenant)"
		}
		return e
	}
	return nil
}

// mayRunCode reports whether a tenant's users may bring object files, which run
// in the kernel.
func (s *Server) mayRunCode(ctx context.Context, who auth.Identity, tenant string) error {
	o, err := s.o.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: tenant})
	if t, ok := o.(*onpath.Tenant); ok && err == nil && t.Spec.AllowEBPF {
		return nil
	}
	if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
		return err
	}
	e := forbidden(who, "run ebpf functions from object files of its own")
	if oe, ok := e.(*onpath.Error); ok {
		oe.Remedy = "use a function that comes with onpath, or have the operator write allowEBPF: true in the Tenant"
	}
	return e
}

// scope is the tenant to which a list, a watch, a trace or a proof is limited, given
// the one asked for ("": all that the asker may see).
func scope(ctx context.Context, asked string) string {
	if who := whoIs(ctx); who.Tenanted() {
		return who.Tenant
	}
	return asked
}
