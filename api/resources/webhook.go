package resources

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
)

// registerWebhookState has who may write a webhook read its secret.
func registerWebhookState(s *Resources) {
	op := router.ItemOperation(http.MethodGet, "/v1/webhooks/{tenant}/{name}/state", "webhook-state", "How a webhook fares, and its secret")
	router.Register(s.router, op, func(ctx context.Context, in *router.Item) (*struct{ Body onpath.WebhookState }, error) {
		o, err := s.d.Store.Get(ctx, in.Key(onpath.KindWebhook))
		if err != nil {
			return nil, err
		}
		if s.d.WebhookState == nil {
			return nil, onpath.Errorf(onpath.CodeUnsupported, "this server sends no webhooks")
		}
		return &struct{ Body onpath.WebhookState }{s.d.WebhookState(o.(*onpath.Webhook))}, nil
	})
}
