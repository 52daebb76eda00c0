package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
)

// registerWebhookState has who may write a webhook read its secret.
func registerWebhookState(s *Server) {
	op := itemOperation(http.MethodGet, "/v1/webhooks/{tenant}/{name}/state", "webhook-state", "How a webhook fares, and its secret")
	huma.Register(s.doc, op, func(ctx context.Context, in *getInput) (*struct{ Body onpath.WebhookState }, error) {
		o, err := s.o.Store.Get(ctx, in.at.key(onpath.KindWebhook))
		if err != nil {
			return nil, s.answer(ctx, err)
		}
		if s.o.WebhookState == nil {
			return nil, s.answer(ctx, onpath.Errorf(onpath.CodeUnsupported, "this server sends no webhooks"))
		}
		return &struct{ Body onpath.WebhookState }{s.o.WebhookState(o.(*onpath.Webhook))}, nil
	})
}
