package api

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

// secrets seals and opens.
type secrets struct{ *Server }

// placeOf is where alone a value of a secret opens.
func placeOf(k onpath.Key, key string) string { return k.Tenant + "/" + k.Name + "/" + key }

// seal has nothing but sealed values left of a secret. Those that came sealed, as whoever
// reads a secret and applies it again has them, must be this secret's.
func (s secrets) seal(o onpath.Object) error {
	x, ok := o.(*onpath.Secret)
	if !ok {
		return nil
	}
	k := onpath.KeyOf(x)
	if s.o.Sealed == nil {
		return onpath.Errorf(onpath.CodeUnavailable, "this server keeps no secrets")
	}
	for _, key := range slices.Sorted(maps.Keys(x.Spec.Sealed)) {
		if _, err := s.o.Sealed.Open(placeOf(k, key), x.Spec.Sealed[key]); err != nil {
			e := onpath.Errorf(onpath.CodeInvalid, "%w", err)
			e.Object, e.Field, e.Remedy = k.String(), "spec.sealed["+key+"]", "write the value into spec.data"
			return e
		}
	}
	sealed := maps.Clone(x.Spec.Sealed)
	if sealed == nil {
		sealed = map[string]string{}
	}
	for key, value := range x.Spec.Data {
		sealed[key] = s.o.Sealed.Seal(placeOf(k, key), value)
	}
	x.Spec.Data, x.Spec.Sealed = nil, sealed
	return nil
}

type secretsInput struct {
	router.Item
	Node string `query:"node" doc:"of the server's own machine, which has no certificate"`
}

type secretsOutput struct {
	CacheControl string `header:"Cache-Control"`
	Body         wire.Secrets
}

// register gives nodes the secrets of the instances in their plans, and nobody else.
func (s secrets) register() {
	op := router.ItemOperation(http.MethodGet, "/v1/instances/{tenant}/{name}/secrets", "secrets",
		"Read the secrets of an instance that the asking node runs")
	router.Register(s.router, op, func(ctx context.Context, in *secretsInput) (*secretsOutput, error) {
		out, err := s.of(ctx, in.Key(onpath.KindInstance), in.Node)
		if err != nil {
			return nil, err
		}
		return &secretsOutput{CacheControl: "no-store", Body: wire.Secrets{Files: out}}, nil
	})
}

func (s secrets) of(ctx context.Context, instance onpath.Key, node string) (map[string][]byte, error) {
	if who := rights.WhoIs(ctx); who.Role == auth.RoleNode {
		node = who.Name
	}
	if s.o.Sealed == nil || s.o.SecretsPlanned == nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "this server keeps no secrets")
	}
	out := map[string][]byte{}
	for file, of := range s.o.SecretsPlanned(node, instance.Tenant, instance.Name) {
		name, key := of.Split()
		k := onpath.Key{Kind: onpath.KindSecret, Tenant: instance.Tenant, Name: name}
		o, err := s.o.Store.Get(ctx, k)
		if err != nil {
			return nil, err
		}
		value, err := s.o.Sealed.Open(placeOf(k, key), o.(*onpath.Secret).Spec.Sealed[key])
		if err != nil {
			return nil, onpath.Errorf(onpath.CodeUnavailable, "%s, key %s: %w", k, key, err)
		}
		out[file] = []byte(value)
	}
	return out, nil
}
