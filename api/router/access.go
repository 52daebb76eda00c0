package router

import (
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
)

// access is what a route does, for authorize.
type access struct {
	verb rights.Verb
	kind onpath.Kind
}

// accesses are those of the routes, by operation id; package resources adds its own. A
// route that is not here is nobody's.
func accesses() map[string]access {
	of := func(v rights.Verb, kind onpath.Kind) access { return access{v, kind} }
	all := map[string]access{
		"logs": of(rights.Logs, onpath.KindInstance), "exec": of(rights.Exec, onpath.KindInstance),
		"capture": of(rights.Capture, onpath.KindInstance), "flows": of(rights.Flows, onpath.KindInstance),
		"push-metric": of(rights.Write, onpath.KindChain), "accept-node": of(rights.Write, onpath.KindNode),
		"webhook-state": of(rights.Write, onpath.KindWebhook), // it has the secret
		"secrets":       of(rights.Secrets, onpath.KindInstance), "move-instance": of(rights.Move, onpath.KindInstance),
	}
	for verb, ids := range map[rights.Verb][]string{
		rights.Any: {"health", "version", "ready", "join", "log"}, rights.Self: {"whoami", "renew"},
		rights.Apply: {"apply"}, rights.Watch: {"watch"}, rights.List: {"list-unconfirmed"}, rights.Confirm: {"confirm", "undo"},
		rights.Trace: {"trace"}, rights.Verify: {"verify"}, rights.Notifications: {"notifications"}, rights.Audit: {"audit"},
		rights.Nodes: {"counters", "distances", "usage", "watchFlow"}, rights.Traffic: {"traffic"},
		rights.Fault: {"fault"}, rights.Trial: {"trial"},
		rights.Backup: {"backup"}, rights.Metrics: {"metrics"}, rights.Session: {"session"},
		rights.Tokens: {"create-token", "list-tokens", "delete-token"}, rights.Revoke: {"revoke", "resume", "list-suspended"},
		rights.Rotate: {"rotation", "rotate"}, rights.Pool: {"capacity"},
		rights.Account: {"account", "invoice", "postings"}, rights.Money: {"enter-money", "check-ledger", "ledger-days"},
	} {
		for _, id := range ids {
			all[id] = access{verb: verb}
		}
	}
	return all
}

// asked are the parts of a request that say what it is about.
type asked struct {
	tenant, name string // of its path
	query        func(name string) string
}

// admit refuses who may not use a route for what is asked of it.
func (rt *Router) admit(r *http.Request, id string, in asked) error {
	a, ok := rt.access[id]
	if !ok {
		return onpath.Errorf(onpath.CodeInternal, "nobody may use %s: it does not say who may", id)
	}
	k := onpath.Key{Kind: a.kind, Tenant: in.tenant, Name: in.name}
	switch {
	case id == "capture" || id == "flows": // at one of one's instances, or at a node
		if k.Tenant, k.Name = onpath.Ref(in.query("instance")).Resolve(rights.OwnTenant(r.Context())); k.Name == "" {
			k = onpath.Key{Kind: onpath.KindNode, Name: in.query("node")}
		}
	case k.Tenant == "":
		k.Tenant = in.query("tenant")
	}
	return rights.May(r.Context(), a.verb, k)
}

// guard is admit before the operations that huma serves.
func (rt *Router) guard(ctx huma.Context, next func(huma.Context)) {
	r := (&http.Request{}).WithContext(ctx.Context())
	err := rt.admit(r, ctx.Operation().OperationID, asked{ctx.Param("tenant"), ctx.Param("name"), ctx.Query})
	if err == nil {
		next(ctx)
		return
	}
	p := problemOf(rt.noted(ctx.Context(), ctx.Operation().OperationID, err))
	ctx.SetHeader("Content-Type", p.ContentType(""))
	for name, values := range p.GetHeaders() {
		ctx.SetHeader(name, values[0])
	}
	ctx.SetStatus(p.Status)
	_ = json.NewEncoder(ctx.BodyWriter()).Encode(p.Problem)
}

// guarded is admit before a plain handler.
func (rt *Router) guarded(id string, do func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := rt.admit(r, id, asked{r.PathValue("tenant"), r.PathValue("name"), r.URL.Query().Get})
		if err == nil {
			err = do(w, r)
		}
		if err != nil {
			rt.Fail(w, r, err)
		}
	}
}
