// Package questions is the part of the API that the planner answers: the way of a packet, what
// a flow's packets meet, and whether chains keep their promise. It also takes the values that
// scaling goes by.
package questions

import (
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

// Planner answers.
type Planner interface {
	// Trace finds the way of a packet.
	Trace(ctx context.Context, r onpath.TraceRequest) (*onpath.Trace, error)
	// WatchFlow counts a flow's packets hop by hop, and reads what was counted.
	WatchFlow(ctx context.Context, r onpath.WatchRequest) (*onpath.FlowWatch, error)
	// Verify proves on the nodes' rules what chains promise, or refutes it.
	Verify(ctx context.Context, r onpath.VerifyRequest) (*onpath.Verification, error)
	// PushMetric takes a value that a chain's scaling goes by; a zero time means now.
	PushMetric(ctx context.Context, chain onpath.Key, value float64, at time.Time) error
}

// Deps are what the part needs of others.
type Deps struct {
	Planner Planner
}

// Questions asks the planner.
type Questions struct {
	d      Deps
	router *router.Router
}

// Register adds the part's routes.
func Register(rt *router.Router, d Deps) {
	s := &Questions{d: d, router: rt}
	s.registerTrace()
	s.registerVerify()
	s.registerWatchFlow()
	s.registerMetric()
}

// redactable leaves of itself what a tenant may see.
type redactable interface {
	*onpath.Trace | *onpath.Verification
	Redact(tenant string)
}

// redact leaves of an answer what the asker may see.
func redact[T redactable](ctx context.Context, answer T) {
	if who := rights.WhoIs(ctx); who.Role != auth.RoleOperator && answer != nil {
		answer.Redact(who.Tenant)
	}
}
