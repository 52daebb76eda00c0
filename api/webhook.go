package api

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
)

// registerWebhookState has who may write a webhook read its secret.
func registerWebhookState(s *Server) {
	op := router.ItemOperation(http.MethodGet, "/v1/webhooks/{tenant}/{name}/state", "webhook-state", "How a webhook fares, and its secret")
	router.Register(s.router, op, func(ctx context.Context, in *router.Item) (*struct{ Body onpath.WebhookState }, error) {
		o, err := s.o.Store.Get(ctx, in.Key(onpath.KindWebhook))
		if err != nil {
			return nil, err
		}
		if s.o.WebhookState == nil {
			return nil, onpath.Errorf(onpath.CodeUnsupported, "this server sends no webhooks")
		}
		return &struct{ Body onpath.WebhookState }{s.o.WebhookState(o.(*onpath.Webhook))}, nil
	})
}
