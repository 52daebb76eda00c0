package api

import (
	"log/slog"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/store/mem"
)

// TestEveryRouteSaysWhoMay: a route without its access is nobody's, and there is none.
func TestEveryRouteSaysWhoMay(t *testing.T) {
	hub := session.NewHub(slog.New(slog.DiscardHandler), nil)
	defer hub.Close()
	s, err := New(Options{Store: mem.New(mem.Options{}), Controller: noController{}, Hub: hub, Dir: t.TempDir(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for path, item := range s.doc.OpenAPI().Paths {
		for _, op := range []string{idOf(item.Get), idOf(item.Put), idOf(item.Post), idOf(item.Delete)} {
			if n++; op != "" && s.access[op].verb == "" {
				t.Errorf("%s (%s) does not say who may use it", path, op)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d operations were found", n)
	}
}

func TestAuthorize(t *testing.T) {
	operator, remote := auth.LocalOperator(), auth.Identity{Role: auth.RoleOperator, Name: "o", Credential: "key"}
	alice := auth.Identity{Role: auth.RoleUser, Name: "alice", Tenant: "me"}
	board := auth.Identity{Role: auth.RoleViewer, Name: "board", Tenant: "me"}
	ci := auth.Identity{Role: auth.RoleOperator, Name: "ci", Kinds: []onpath.Kind{onpath.KindChain}}
	node, stranger := auth.Identity{Role: auth.RoleNode, Name: "n1"}, auth.Identity{}
	for _, c := range []struct {
		who          auth.Identity
		verb         verb
		kind         onpath.Kind
		tenant, name string
		may          bool
	}{
		{operator, verbWrite, onpath.KindChain, "me", "x", true},
		{operator, verbWrite, onpath.KindInstance, "me", "x", false},
		{operator, verbSession, "", "", "", true},
		{remote, verbSession, "", "", "", false},
		{remote, verbRevoke, "", "", "", true},
		{operator, verbSecrets, onpath.KindInstance, "me", "x", true},
		{remote, verbSecrets, onpath.KindInstance, "me", "x", false},
		{alice, verbSecrets, onpath.KindInstance, "me", "x", false},
		{board, verbSecrets, onpath.KindInstance, "me", "x", false},
		{node, verbSecrets, onpath.KindInstance, "me", "x", true},
		{alice, verbRead, onpath.KindChain, "me", "x", true},
		{alice, verbRead, onpath.KindChain, "acme", "x", false},
		{alice, verbRead, onpath.KindChain, "", "x", false},
		{alice, verbList, onpath.KindChain, "", "", true},
		{alice, verbList, onpath.KindChain, "acme", "", false},
		{alice, verbList, onpath.KindNode, "", "", false},
		{alice, verbRead, onpath.KindTenant, "", "me", true},
		{alice, verbWrite, onpath.KindTenant, "", "me", false},
		{alice, verbRead, onpath.KindTenant, "", "acme", false},
		{alice, verbExec, onpath.KindInstance, "me", "x", true},
		{alice, verbCapture, onpath.KindNode, "", "n1", false},
		{alice, verbConfirm, "", "", "id", false}, // an operator's
		{alice, verbConfirm, "", "me", "id", true},
		{alice, verbTokens, "", "", "", false},
		{alice, verbMetrics, "", "", "", false},
		{alice, verbAccount, "", "me", "", true},
		{alice, verbAccount, "", "acme", "", false},
		{alice, verbMoney, "", "me", "", false},
		{alice, verbMove, onpath.KindInstance, "me", "x", false},
		{alice, verbPool, "", "", "", false},
		{alice, verbRead, onpath.KindPriceList, "", "default", true},
		{alice, verbWrite, onpath.KindPriceList, "", "default", false},
		{board, verbRead, onpath.KindChain, "me", "x", true},
		{board, verbRead, onpath.KindChain, "acme", "x", false},
		{board, verbLogs, onpath.KindInstance, "me", "x", true},
		{board, verbWrite, onpath.KindChain, "me", "x", false},
		{board, verbDelete, onpath.KindChain, "me", "x", false},
		{board, verbExec, onpath.KindInstance, "me", "x", false},
		{board, verbCapture, onpath.KindInstance, "me", "x", false},
		{board, verbPush, "", "me", "", false},
		{board, verbAudit, "", "me", "", true},
		{alice, verbAudit, "", "acme", "", false},
		{ci, verbWrite, onpath.KindChain, "me", "x", true},
		{ci, verbApply, "", "", "", true},
		{ci, verbWrite, onpath.KindTenant, "", "x", false},
		{ci, verbTokens, "", "", "", false},
		{ci, verbExec, onpath.KindInstance, "me", "x", false},
		{node, verbSession, "", "", "", true},
		{node, verbPull, "", "acme", "", true},
		{node, verbPush, "", "acme", "", false},
		{node, verbTrace, "", "", "", false},
		{node, verbSelf, "", "", "", true},
		{stranger, verbAny, "", "", "", true},
		{stranger, verbSelf, "", "", "", false},
		{stranger, verbTrace, "", "", "", false},
	} {
		err := authorize(c.who, c.verb, c.kind, c.tenant, c.name)
		if (err == nil) != c.may || err != nil && onpath.CodeOf(err) != onpath.CodeForbidden {
			t.Errorf("%s %s: %s %s %s/%s: %v", c.who.Role, c.who.Name, c.verb, c.kind, c.tenant, c.name, err)
		}
	}
}

// noController is one that nothing is asked of.
type noController struct{ Controller }

func idOf(o *huma.Operation) string {
	if o == nil {
		return ""
	}
	return o.OperationID
}
