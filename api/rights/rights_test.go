package rights

import (
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// TestAuthorize: each role may what it is for, and nothing else.
func TestAuthorize(t *testing.T) {
	operator, remote := auth.LocalOperator(), auth.Identity{Role: auth.RoleOperator, Name: "o", Credential: "key"}
	alice := auth.Identity{Role: auth.RoleUser, Name: "alice", Tenant: "me"}
	board := auth.Identity{Role: auth.RoleViewer, Name: "board", Tenant: "me"}
	ci := auth.Identity{Role: auth.RoleOperator, Name: "ci", Kinds: []onpath.Kind{onpath.KindChain}}
	node, stranger := auth.Identity{Role: auth.RoleNode, Name: "n1"}, auth.Identity{}
	for _, c := range []struct {
		who          auth.Identity
		verb         Verb
		kind         onpath.Kind
		tenant, name string
		may          bool
	}{
		{operator, Write, onpath.KindChain, "me", "x", true},
		{operator, Write, onpath.KindInstance, "me", "x", false},
		{operator, Session, "", "", "", true},
		{remote, Session, "", "", "", false},
		{remote, Revoke, "", "", "", true},
		{operator, Secrets, onpath.KindInstance, "me", "x", true},
		{remote, Secrets, onpath.KindInstance, "me", "x", false},
		{alice, Secrets, onpath.KindInstance, "me", "x", false},
		{board, Secrets, onpath.KindInstance, "me", "x", false},
		{node, Secrets, onpath.KindInstance, "me", "x", true},
		{alice, Read, onpath.KindChain, "me", "x", true},
		{alice, Read, onpath.KindChain, "acme", "x", false},
		{alice, Read, onpath.KindChain, "", "x", false},
		{alice, List, onpath.KindChain, "", "", true},
		{alice, List, onpath.KindChain, "acme", "", false},
		{alice, List, onpath.KindNode, "", "", false},
		{alice, Read, onpath.KindTenant, "", "me", true},
		{alice, Write, onpath.KindTenant, "", "me", false},
		{alice, Read, onpath.KindTenant, "", "acme", false},
		{alice, Exec, onpath.KindInstance, "me", "x", true},
		{alice, Capture, onpath.KindNode, "", "n1", false},
		{alice, Confirm, "", "", "id", false}, // an operator's
		{alice, Confirm, "", "me", "id", true},
		{alice, Tokens, "", "", "", false},
		{alice, Metrics, "", "", "", false},
		{alice, Account, "", "me", "", true},
		{alice, Account, "", "acme", "", false},
		{alice, Money, "", "me", "", false},
		{alice, Move, onpath.KindInstance, "me", "x", false},
		{alice, Pool, "", "", "", false},
		{alice, Read, onpath.KindPriceList, "", "default", true},
		{alice, Write, onpath.KindPriceList, "", "default", false},
		{board, Read, onpath.KindChain, "me", "x", true},
		{board, Read, onpath.KindChain, "acme", "x", false},
		{board, Logs, onpath.KindInstance, "me", "x", true},
		{board, Write, onpath.KindChain, "me", "x", false},
		{board, Delete, onpath.KindChain, "me", "x", false},
		{board, Exec, onpath.KindInstance, "me", "x", false},
		{board, Capture, onpath.KindInstance, "me", "x", false},
		{board, Push, "", "me", "", false},
		{board, Audit, "", "me", "", true},
		{alice, Audit, "", "acme", "", false},
		{ci, Write, onpath.KindChain, "me", "x", true},
		{ci, Apply, "", "", "", true},
		{ci, Write, onpath.KindTenant, "", "x", false},
		{ci, Tokens, "", "", "", false},
		{ci, Exec, onpath.KindInstance, "me", "x", false},
		{node, Session, "", "", "", true},
		{node, Pull, "", "acme", "", true},
		{node, Push, "", "acme", "", false},
		{node, Trace, "", "", "", false},
		{node, Self, "", "", "", true},
		{stranger, Any, "", "", "", true},
		{stranger, Self, "", "", "", false},
		{stranger, Trace, "", "", "", false},
	} {
		err := Authorize(c.who, c.verb, c.kind, c.tenant, c.name)
		if (err == nil) != c.may || err != nil && onpath.CodeOf(err) != onpath.CodeForbidden {
			t.Errorf("%s %s: %s %s %s/%s: %v", c.who.Role, c.who.Name, c.verb, c.kind, c.tenant, c.name, err)
		}
	}
}
