package join

import (
	"context"
	"net/http"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

func (s *Join) registerAuth() {
	router.RegisterSmall(s.router, http.MethodPost, "/v1/tokens", "create-token", "Make a join token for a node or user", s.createToken)
	router.RegisterSmall(s.router, http.MethodGet, "/v1/tokens", "list-tokens", "Join tokens that can still be used", s.listTokens)
	router.RegisterSmall(s.router, http.MethodDelete, "/v1/tokens/{id}", "delete-token", "Make a join token unusable", s.deleteToken)
	router.RegisterSmall(s.router, http.MethodPost, "/v1/join", "join",
		"Redeem a join token for a certificate; needs no other credential", s.join)
	router.RegisterSmall(s.router, http.MethodPost, "/v1/renew", "renew", "Renew one's certificate", s.renew)
	router.RegisterSmall(s.router, http.MethodPost, "/v1/revoke", "revoke", "Make all certificates of somebody unacceptable", s.revoke)
	router.RegisterSmall(s.router, http.MethodGet, "/v1/whoami", "whoami", "Who the server thinks you are",
		func(ctx context.Context, _ *struct{}) (*router.Body[auth.Identity], error) {
			return router.NewBody(rights.WhoIs(ctx)), nil
		})
}

func (s *Join) createToken(ctx context.Context, in *router.Body[auth.TokenRequest]) (*router.Body[wire.Token], error) {
	a, err := Authority(s.d.Authority)
	if err != nil {
		return nil, err
	}
	if in.Body.Address == "" {
		in.Body.Address = s.d.Address
	}
	if in.Body.Address == "" {
		e := onpath.Errorf(onpath.CodeInvalid, "it is not known at which address others reach this server")
		e.Remedy = "name one with --address HOST:PORT"
		return nil, e
	}
	if err := s.tenantOf(ctx, in.Body); err != nil {
		return nil, err
	}
	err = s.router.WriteEntry(ctx, onpath.LogAccess, in.Body.Tenant, "", "a join token for %s %s is made", in.Body.Role, in.Body.Name)
	if err != nil {
		return nil, err
	}
	word, info, err := a.CreateToken(in.Body)
	if err != nil {
		return nil, err
	}
	s.d.Log.Info("join token made", "by", rights.WhoIs(ctx).URI(), "id", info.ID, "role", info.Role, "name", info.Name,
		"expires", info.Expires)
	return router.NewBody(wire.Token{Word: word, ID: info.ID, Expires: info.Expires}), nil
}

// tenantOf refuses tokens for users of a tenant that does not exist. Two tenants always
// do, also before the planner has made them.
func (s *Join) tenantOf(ctx context.Context, r auth.TokenRequest) error {
	who := auth.Identity{Role: r.Role}
	if !who.Tenanted() || r.Tenant == "" || r.Tenant == onpath.DefaultTenant || r.Tenant == onpath.OperatorTenant {
		return nil
	}
	_, err := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: r.Tenant})
	if onpath.CodeOf(err) != onpath.CodeNotFound {
		return err
	}
	e := onpath.Errorf(onpath.CodeNotFound, "there is no tenant %s", r.Tenant)
	e.Remedy = "apply a Tenant of that name first; onpath get tenants lists those that are there"
	return e
}

func (s *Join) listTokens(ctx context.Context, _ *struct{}) (*router.Body[[]auth.TokenInfo], error) {
	a, err := Authority(s.d.Authority)
	if err != nil {
		return nil, err
	}
	return router.NewBody(a.Tokens()), nil
}

func (s *Join) deleteToken(ctx context.Context, in *struct {
	ID string `path:"id"`
}) (*struct{}, error) {
	a, err := Authority(s.d.Authority)
	if err != nil {
		return nil, err
	}
	if err := s.router.WriteEntry(ctx, onpath.LogAccess, "", "", "join token %s is deleted", in.ID); err != nil {
		return nil, err
	}
	list := a.Tokens()
	if err := a.DeleteToken(in.ID); err != nil {
		return nil, err
	}
	for _, t := range list {
		if t.ID == in.ID && t.API { // what its holder has begun ends, too
			s.router.EndRequests(auth.Identity{Role: t.Role, Name: t.Name, Tenant: t.Tenant}.URI())
		}
	}
	return nil, nil
}

func (s *Join) join(ctx context.Context, in *router.Body[wire.Join]) (*router.Body[wire.Joined], error) {
	a, err := Authority(s.d.Authority)
	if err != nil {
		return nil, err
	}
	cert, who, err := a.Join(in.Body.Secret, in.Body.Name, []byte(in.Body.Request))
	if err != nil {
		s.router.NoteRefusedJoin(ctx, in.Body.Name, err)
		s.d.Log.Warn("a join was refused", "name", in.Body.Name, "error", err)
		return nil, err
	}
	s.d.Log.Info("joined", "identity", who.URI())
	return router.NewBody(wire.Joined{Certificate: string(cert), Authority: string(a.CertPEM()), Identity: who.URI()}), nil
}

func (s *Join) renew(ctx context.Context, in *router.Body[wire.Renew]) (*router.Body[wire.Joined], error) {
	a, err := Authority(s.d.Authority)
	if err != nil {
		return nil, err
	}
	who := rights.WhoIs(ctx)
	cert, err := a.Renew(who, []byte(in.Body.Request))
	if err != nil {
		return nil, err
	}
	s.d.Log.Info("certificate renewed", "identity", who.URI())
	return router.NewBody(wire.Joined{Certificate: string(cert), Authority: string(a.CertPEM()), Identity: who.URI()}), nil
}

func (s *Join) revoke(ctx context.Context, in *router.Body[wire.Revoke]) (*struct{}, error) {
	a, err := Authority(s.d.Authority)
	if err != nil {
		return nil, err
	}
	who, err := auth.ParseIdentity(in.Body.Identity)
	if err != nil {
		return nil, err
	}
	if err := s.router.WriteEntry(ctx, onpath.LogAccess, who.Tenant, "", "certificates of %s are revoked", who.URI()); err != nil {
		return nil, err
	}
	if err := a.Revoke(who.URI()); err != nil {
		return nil, err
	}
	s.router.EndRequests(who.URI())
	s.d.Log.Info("certificates revoked", "by", rights.WhoIs(ctx).URI(), "identity", who.URI())
	if who.Role == auth.RoleNode {
		s.d.Hub.Disconnect(who.Name, "its certificate was revoked")
	}
	return nil, nil
}
