package resources

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/internal/sealed"
)

type secretsInput struct {
	router.Item
	Node string `query:"node" doc:"of the server's own machine, which has no certificate"`
}

type secretsOutput struct {
	CacheControl string `header:"Cache-Control"`
	Body         wire.Secrets
}

// registerSecrets gives nodes the secrets of the instances in their plans, and nobody else.
func (s *Resources) registerSecrets() {
	op := router.ItemOperation(http.MethodGet, "/v1/instances/{tenant}/{name}/secrets", "secrets",
		"Read the secrets of an instance that the asking node runs")
	router.Register(s.router, op, func(ctx context.Context, in *secretsInput) (*secretsOutput, error) {
		out, err := s.secretsOf(ctx, in.Key(onpath.KindInstance), in.Node)
		if err != nil {
			return nil, err
		}
		return &secretsOutput{CacheControl: "no-store", Body: wire.Secrets{Files: out}}, nil
	})
}

func (s *Resources) secretsOf(ctx context.Context, instance onpath.Key, node string) (map[string][]byte, error) {
	if who := rights.WhoIs(ctx); who.Role == auth.RoleNode {
		node = who.Name
	}
	if s.d.Sealed == nil || s.d.SecretsPlanned == nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "this server keeps no secrets")
	}
	out := map[string][]byte{}
	for file, of := range s.d.SecretsPlanned(node, instance.Tenant, instance.Name) {
		name, key := of.Split()
		k := onpath.Key{Kind: onpath.KindSecret, Tenant: instance.Tenant, Name: name}
		o, err := s.d.Store.Get(ctx, k)
		if err != nil {
			return nil, err
		}
		value, err := s.d.Sealed.Open(sealed.Place(k.Tenant, k.Name, key), o.(*onpath.Secret).Spec.Sealed[key])
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeUnavailable, "%s, key %s: %w", k, key, err)
		}
		out[file] = []byte(value)
	}
	return out, nil
}
