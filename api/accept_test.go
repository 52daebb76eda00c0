package api_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
)

// hellos keeps what nodes say first.
type hellos struct {
	*nodes
	heard chan onpath.NodeHello
}

func (h hellos) NodeConnected(hello onpath.NodeHello) { h.heard <- hello }

// grantOf is what the server knows of a node that joins by a token.
func grantOf(t *testing.T, w *world, r auth.TokenRequest, name string) (*onpath.NodeGrant, *client.Client) {
	t.Helper()
	h := hellos{w.nodes, make(chan onpath.NodeHello, 1)}
	w.hub.Attach(h)
	c, err := w.join(r, name)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, h, c, name), c
}

func connect(t *testing.T, h hellos, c *client.Client, name string) *onpath.NodeGrant {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := session.Dial(ctx, session.Options{Connect: c.Dial, Hello: func() onpath.NodeHello { return onpath.NodeHello{Node: name} }}, agent{})
	defer func() { cancel(); <-s.Done() }()
	return (<-h.heard).Grant
}

// TestTokenGrants: what a token is for is known of the node that joined by it, at each
// connection, also after its certificate was renewed; a certificate says no more.
func TestTokenGrants(t *testing.T) {
	w := newWorld(t)
	g, _ := grantOf(t, w, auth.TokenRequest{Role: auth.RoleNode}, "n1")
	if g == nil || g.Cloudlet != onpath.DefaultTenant || len(g.Uplinks) != 0 {
		t.Errorf("a token without more: %+v", g)
	}
	g, c := grantOf(t, w, auth.TokenRequest{Role: auth.RoleNode, Cloudlet: "fra1", Uplinks: []string{"eth0", "eth1"}}, "n2")
	if g == nil || g.Cloudlet != "fra1" || !slices.Equal(g.Uplinks, []string{"eth0", "eth1"}) {
		t.Errorf("a gateway's token: %+v", g)
	}
	if err := c.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := hellos{w.nodes, make(chan onpath.NodeHello, 1)}
	w.hub.Attach(h)
	if g := connect(t, h, c, "n2"); g == nil || g.Cloudlet != "fra1" {
		t.Errorf("after a renewal: %+v", g)
	}
	for _, r := range []auth.TokenRequest{
		{Role: auth.RoleUser, Name: "alice", Tenant: "default", Cloudlet: "fra1"},
		{Role: auth.RoleNode, Cloudlet: "../x"},
		{Role: auth.RoleNode, Uplinks: []string{""}},
	} {
		_, err := w.operator.CreateToken(t.Context(), r)
		wantCode(t, err, onpath.CodeInvalid)
	}
	if err := w.operator.AcceptNode(t.Context(), "n2"); err != nil || !slices.Equal(w.controller.accepted, []string{"n2"}) {
		t.Errorf("accepted %v, %v", w.controller.accepted, err)
	}
	wantCode(t, c.AcceptNode(t.Context(), "n2"), onpath.CodeForbidden)
	wantCode(t, w.user("acme").AcceptNode(t.Context(), "n2"), onpath.CodeForbidden)
}

// TestNodesPullOwnImages: a node reads images of its own plan, and no others.
func TestNodesPullOwnImages(t *testing.T) {
	w := newWorld(t)
	w.controller.planned = map[string][]string{"n1": {"acme/web"}}
	node, err := w.join(auth.TokenRequest{Role: auth.RoleNode}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"":                            http.StatusOK,
		"acme/web/manifests/latest":   http.StatusNotFound, // may be asked for
		"acme/other/manifests/latest": http.StatusForbidden,
		"evil/web/blobs/sha256:" + strings.Repeat("0", 64): http.StatusForbidden,
		"acme/other/tags/list":                             http.StatusForbidden,
	} {
		answer, err := node.HTTP().Get(node.URL() + "/v2/" + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, answer.Status, want)
		}
	}
}

// TestNamesInURLs: a name is one part of a URL, whatever is in it; it never becomes a
// request for something else.
func TestNamesInURLs(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"..", ".", "a/b", "a?force=true", "a#b", "a%2Fb", "../../nodes/n1", "a b", "ä"} {
		k := onpath.Key{Kind: onpath.KindChain, Tenant: "acme", Name: name}
		if o, err := w.operator.Get(t.Context(), k); err == nil {
			t.Errorf("%q is %T", name, o)
		}
		if err := w.operator.Delete(t.Context(), k, false); err == nil {
			t.Errorf("%q was deleted", name)
		}
	}
}
