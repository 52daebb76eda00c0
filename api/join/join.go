// Package join is the part of the API by which nodes and users come and go: join tokens,
// certificates, the acceptance of nodes, and what ends with a deleted node or tenant.
package join

import (
	"context"
	"log/slog"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/internal/sealed"
)

// Admission says what nodes are given.
type Admission interface {
	// AcceptNode has a node that waits follow this server's store.
	AcceptNode(ctx context.Context, name string) error
}

// Sessions are those of nodes.
type Sessions interface {
	Disconnect(node, reason string)
}

// Notifications are what functions told their owners.
type Notifications interface {
	// Forget deletes what is stored of a tenant that is deleted.
	Forget(tenant string) error
}

// Secrets are the server's own secret, and while it is rotated the one before.
type Secrets interface {
	Keys() [][]byte
	Rotate() error
	EndRotation() error
}

// Deps are what the part needs of others.
type Deps struct {
	Store         onpath.Store
	Authority     *auth.Authority // nil: nobody can join
	Admission     Admission
	Hub           Sessions
	Notifications Notifications // nil: there are none
	Address       string        // where nodes and users reach the server
	// Secrets are rotated, and what Sealed has sealed is sealed again; nil: they are not.
	Secrets Secrets
	Sealed  *sealed.Box
	Log     *slog.Logger
}

// Join lets in, and turns away.
type Join struct {
	d      Deps
	router *router.Router
}

// Register adds the part's routes.
func Register(rt *router.Router, d Deps) *Join {
	s := &Join{d: d, router: rt}
	s.registerAuth()
	s.registerAccept()
	s.registerRotation()
	return s
}

// Authority is a, or an error that says how to get one.
func Authority(a *auth.Authority) (*auth.Authority, error) {
	if a == nil {
		e := onpath.Errorf(onpath.CodeUnsupported, "the server listens on its unix socket only, so nobody can join from elsewhere")
		e.Remedy = "start it with --listen ADDRESS:PORT, or write server.listen into its onpath.yaml"
		return nil, e
	}
	return a, nil
}
