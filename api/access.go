package api

import (
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
)

// access is what a route does, for authorize.
type access struct {
	verb verb
	kind onpath.Kind
}

// accesses are those of the routes, by operation id; registerObjects adds its own. A
// route that is not here is nobody's.
func accesses() map[string]access {
	return map[string]access{
		"health": {verb: verbAny}, "version": {verb: verbAny}, "ready": {verb: verbAny}, "join": {verb: verbAny},
		"whoami": {verb: verbSelf}, "renew": {verb: verbSelf},
		"apply": {verb: verbApply}, "watch": {verb: verbWatch},
		"list-unconfirmed": {verb: verbList}, "confirm": {verb: verbConfirm}, "undo": {verb: verbConfirm},
		"trace": {verb: verbTrace}, "verify": {verb: verbVerify},
		"notifications": {verb: verbNotifications}, "audit": {verb: verbAudit}, "log": {verb: verbAny},
		"logs": {verbLogs, onpath.KindInstance}, "exec": {verbExec, onpath.KindInstance},
		"capture": {verbCapture, onpath.KindInstance}, "flows": {verbFlows, onpath.KindInstance},
		"counters": {verb: verbNodes}, "distances": {verb: verbNodes}, "usage": {verb: verbNodes}, "watchFlow": {verb: verbNodes},
		"traffic": {verb: verbTraffic},
		"fault":   {verb: verbFault}, "backup": {verb: verbBackup}, "metrics": {verb: verbMetrics}, "session": {verb: verbSession},
		"create-token": {verb: verbTokens}, "list-tokens": {verb: verbTokens}, "delete-token": {verb: verbTokens},
		"revoke": {verb: verbRevoke}, "push-metric": {verbWrite, onpath.KindChain}, "accept-node": {verbWrite, onpath.KindNode},
		"webhook-state": {verbWrite, onpath.KindWebhook}, // it has the secret
		"secrets":       {verbSecrets, onpath.KindInstance},
		"move-instance": {verbMove, onpath.KindInstance}, "capacity": {verb: verbPool},
		"account": {verb: verbAccount}, "invoice": {verb: verbAccount}, "postings": {verb: verbAccount},
		"enter-money": {verb: verbMoney}, "check-ledger": {verb: verbMoney},
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
		if k.Tenant, k.Name = onpath.Ref(in.query("instance")).Resolve(ownTenant(r.Context())); k.Name == "" {
			k = onpath.Key{Kind: onpath.KindNode, Name: in.query("node")}
		}
	case k.Tenant == "":
		k.Tenant = in.query("tenant")
	}
	return may(r.Context(), a.verb, k)
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
