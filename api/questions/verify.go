package questions

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

type verifyInput struct {
	Chains []string `query:"chain,explode" doc:"only these: tenant/name; default all"`
	Live   bool     `query:"live" doc:"the rules that nodes have acknowledged; default the newest planned"`
}

func (s *Questions) registerVerify() {
	router.Register(s.router, router.Operation(http.MethodGet, "/v1/verify", "verify",
		"Prove on the rules of the whole network that chains keep their promise, or show a flow for which they do not"),
		func(ctx context.Context, in *verifyInput) (*struct{ Body onpath.Verification }, error) {
			p, err := s.verify(ctx, in)
			if err != nil {
				return nil, err
			}
			return &struct{ Body onpath.Verification }{*p}, nil
		})
}

func (s *Questions) verify(ctx context.Context, in *verifyInput) (*onpath.Verification, error) {
	r := onpath.VerifyRequest{Live: in.Live, Tenant: rights.ScopeTenant(ctx, "")}
	for _, c := range in.Chains {
		tenant, name := onpath.Ref(c).Resolve(rights.OwnTenant(ctx))
		r.Chains = append(r.Chains, tenant+"/"+name)
	}
	p, err := s.d.Planner.Verify(ctx, r)
	redact(ctx, p)
	return p, err
}
