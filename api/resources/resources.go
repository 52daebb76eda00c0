// Package resources is the part of the API that reads and writes one object at a time, a set of
// routes for each kind.
package resources

import (
	"context"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/internal/sealed"
)

// Changes changes objects, and keeps their histories.
type Changes interface {
	Put(ctx context.Context, o onpath.Object, version int64) error
	Remove(ctx context.Context, k onpath.Key, version int64, force bool) error
	Versions(ctx context.Context, now onpath.Object) ([]wire.ObjectVersion, error)
}

// Past is what the files of closed days hold.
type Past interface {
	// Ended is a reservation of a closed day; CodeNotFound.
	Ended(ctx context.Context, reservation onpath.Key) (*onpath.Reservation, error)
}

// Deps are what the part needs of others.
type Deps struct {
	Store   onpath.Store
	Changes Changes
	Past    Past // nil: no day is closed
	// Sealed opens secrets; SecretsPlanned are those that an instance in a node's plan names,
	// by file. Nil: there are none.
	Sealed         *sealed.Box
	SecretsPlanned func(node, tenant, instance string) map[string]onpath.SecretKey
	// WebhookState is how a Webhook fares; nil: nothing is sent.
	WebhookState func(*onpath.Webhook) onpath.WebhookState
}

// Resources reads and writes objects.
type Resources struct {
	d      Deps
	router *router.Router
}

// Register adds the routes of all kinds.
func Register(rt *router.Router, d Deps) {
	s := &Resources{d: d, router: rt}
	registerObjects[*onpath.Tenant](s, onpath.KindTenant)
	registerObjects[*onpath.Cloudlet](s, onpath.KindCloudlet)
	registerObjects[*onpath.Node](s, onpath.KindNode)
	registerObjects[*onpath.Hosts](s, onpath.KindHosts)
	registerObjects[*onpath.Function](s, onpath.KindFunction)
	registerObjects[*onpath.Deployment](s, onpath.KindDeployment)
	registerObjects[*onpath.Chain](s, onpath.KindChain)
	registerObjects[*onpath.Measurement](s, onpath.KindMeasurement)
	registerObjects[*onpath.Accelerator](s, onpath.KindAccelerator)
	registerObjects[*onpath.Instance](s, onpath.KindInstance)
	registerObjects[*onpath.Lease](s, onpath.KindLease)
	registerObjects[*onpath.Event](s, onpath.KindEvent)
	registerObjects[*onpath.PriceList](s, onpath.KindPriceList)
	registerItem[*onpath.Reservation](s, onpath.KindReservation)
	registerObjects[*onpath.PrefixClaim](s, onpath.KindPrefixClaim)
	registerObjects[*onpath.Webhook](s, onpath.KindWebhook)
	registerObjects[*onpath.Service](s, onpath.KindService)
	registerObjects[*onpath.Secret](s, onpath.KindSecret)
	registerWebhookState(s)
	s.registerSecrets()
}

// ended is a reservation of a closed day, where the store has none of its name.
func ended(ctx context.Context, past Past, k onpath.Key, err error) (onpath.Object, error) {
	if k.Kind != onpath.KindReservation || past == nil || onpath.CodeOf(err) != onpath.CodeNotFound {
		return nil, err
	}
	r, err := past.Ended(ctx, k)
	if err != nil {
		return nil, err
	}
	return r, nil
}
