package api

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

// accesses are those of the routes, by operation id; registerObjects adds its own. A
// route that is not here is nobody's.
func accesses() map[string]access {
	return map[string]access{
		"health": {verb: rights.Any}, "version": {verb: rights.Any}, "ready": {verb: rights.Any}, "join": {verb: rights.Any},
		"whoami": {verb: rights.Self}, "renew": {verb: rights.Self},
		"apply": {verb: rights.Apply}, "watch": {verb: rights.Watch},
		"list-unconfirmed": {verb: rights.List}, "confirm": {verb: rights.Confirm}, "undo": {verb: rights.Confirm},
		"trace": {verb: rights.Trace}, "verify": {verb: rights.Verify},
		"notifications": {verb: rights.Notifications}, "audit": {verb: rights.Audit}, "log": {verb: rights.Any},
		"logs": {rights.Logs, onpath.KindInstance}, "exec": {rights.Exec, onpath.KindInstance},
		"capture": {rights.Capture, onpath.KindInstance}, "flows": {rights.Flows, onpath.KindInstance},
		"counters": {verb: rights.Nodes}, "distances": {verb: rights.Nodes}, "usage": {verb: rights.Nodes}, "watchFlow": {verb: rights.Nodes},
		"traffic": {verb: rights.Traffic},
		"fault":   {verb: rights.Fault}, "backup": {verb: rights.Backup}, "metrics": {verb: rights.Metrics}, "session": {verb: rights.Session},
		"create-token": {verb: rights.Tokens}, "list-tokens": {verb: rights.Tokens}, "delete-token": {verb: rights.Tokens},
		"revoke": {verb: rights.Revoke}, "push-metric": {rights.Write, onpath.KindChain}, "accept-node": {rights.Write, onpath.KindNode},
		"webhook-state": {rights.Write, onpath.KindWebhook}, // it has the secret
		"secrets":       {rights.Secrets, onpath.KindInstance},
		"move-instance": {rights.Move, onpath.KindInstance}, "capacity": {verb: rights.Pool},
		"account": {verb: rights.Account}, "invoice": {verb: rights.Account}, "postings": {verb: rights.Account},
		"enter-money": {verb: rights.Money}, "check-ledger": {verb: rights.Money},
	}
}

// asked are the parts of a request that say what it is about.
type asked struct {
	tenant, name string // of its path
	query        func(name string) string
}

// admit refuses who may not use a route for what is asked of it.
func (s *Server) admit(r *http.Request, id string, in asked) error {
	a, ok := s.access[id]
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
func (s *Server) guard(ctx huma.Context, next func(huma.Context)) {
	r := (&http.Request{}).WithContext(ctx.Context())
	err := s.admit(r, ctx.Operation().OperationID, asked{ctx.Param("tenant"), ctx.Param("name"), ctx.Query})
	if err == nil {
		next(ctx)
		return
	}
	p := problemOf(s.noted(ctx.Context(), ctx.Operation().OperationID, err))
	ctx.SetHeader("Content-Type", p.ContentType(""))
	ctx.SetStatus(p.Status)
	_ = json.NewEncoder(ctx.BodyWriter()).Encode(p.Problem)
}

// guarded is admit before a plain handler.
func (s *Server) guarded(id string, do func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := s.admit(r, id, asked{r.PathValue("tenant"), r.PathValue("name"), r.URL.Query().Get})
		if err == nil {
			err = do(w, r)
		}
		if err != nil {
			s.fail(w, r, err)
		}
	}
}
