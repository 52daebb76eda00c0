package join

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

func (s *Join) registerRotation() {
	router.RegisterSmall(s.router, http.MethodGet, "/v1/rotation", "rotation", "How far the rotation of the server's keys is",
		func(ctx context.Context, _ *struct{}) (*router.Body[wire.KeyRotation], error) {
			return s.rotation(ctx)
		})
	router.RegisterSmall(s.router, http.MethodPost, "/v1/rotation/{key}", "rotate",
		"Begin or end the rotation of one of the server's keys", s.rotate)
	router.RegisterSmall(s.router, http.MethodGet, "/v1/suspended", "list-suspended",
		"Users and tokens of a restored backup, which are refused until they are resumed",
		func(context.Context, *struct{}) (*router.Body[wire.Names], error) {
			a, err := Authority(s.d.Authority)
			if err != nil {
				return nil, err
			}
			return router.NewBody(wire.Names{Names: a.Suspended()}), nil
		})
	router.RegisterSmall(s.router, http.MethodPost, "/v1/resume", "resume", "Accept users and tokens of a restored backup again", s.resume)
}

func (s *Join) resume(ctx context.Context, in *router.Body[wire.Resume]) (*router.Body[wire.Names], error) {
	a, err := Authority(s.d.Authority)
	if err != nil {
		return nil, err
	}
	if err := s.router.WriteEntry(ctx, onpath.LogAccess, "", "", "users and tokens of a backup are accepted again"); err != nil {
		return nil, err
	}
	names, err := a.Resume(in.Body.Names, in.Body.All)
	if err != nil {
		return nil, err
	}
	s.d.Log.Info("accepted again after a restore", "by", rights.WhoIs(ctx).URI(), "names", names)
	return router.NewBody(wire.Names{Names: names}), nil
}

type rotateInput struct {
	Key  string `path:"key" enum:"authority,secret" doc:"authority or secret"`
	Body wire.Rotate
}

func (s *Join) rotate(ctx context.Context, in *rotateInput) (*router.Body[wire.KeyRotation], error) {
	do := s.rotateSecret
	if in.Key == "authority" {
		do = s.rotateAuthority
	}
	step := "begins"
	if in.Body.End {
		step = "ends"
	}
	if err := s.router.WriteEntry(ctx, onpath.LogAccess, "", "", "the rotation of the server's %s %s", in.Key, step); err != nil {
		return nil, err
	}
	if err := do(ctx, in.Body); err != nil {
		return nil, err
	}
	s.d.Log.Info("the rotation of a key "+step, "key", in.Key, "by", rights.WhoIs(ctx).URI())
	return s.rotation(ctx)
}

func (s *Join) rotation(ctx context.Context) (*router.Body[wire.KeyRotation], error) {
	var out wire.KeyRotation
	if s.d.Authority != nil {
		r := s.d.Authority.Rotation()
		out.Authority = &r
	}
	if s.d.Secrets != nil && len(s.d.Secrets.Keys()) > 1 {
		out.Secret = true
		var err error
		if out.Sealed, err = s.sealAgain(ctx, false); err != nil {
			return nil, err
		}
	}
	return router.NewBody(out), nil
}

// rotateAuthority ends the sessions of nodes that have certificates of the former authority
// alone: as they connect again, they learn of the new one.
func (s *Join) rotateAuthority(_ context.Context, in wire.Rotate) error {
	a, err := Authority(s.d.Authority)
	if err != nil {
		return err
	}
	reason := "the authority is rotated: connect again for a new certificate"
	var who []string
	if in.End {
		who, err = a.EndRotation(in.Force)
		reason = "its certificate is of the former authority"
	} else if err = a.Rotate(); err == nil {
		who = a.Rotation().Waiting
	}
	if err != nil {
		return err
	}
	for _, uri := range who {
		i, err := auth.ParseIdentity(uri)
		switch {
		case err != nil:
		case i.Role == auth.RoleNode:
			s.d.Hub.Disconnect(i.Name, reason)
		case in.End:
			s.router.EndRequests(uri)
		}
	}
	return nil
}

// rotateSecret has every Secret sealed by the new secret, before the one before is forgotten.
func (s *Join) rotateSecret(ctx context.Context, in wire.Rotate) error {
	if s.d.Secrets == nil || s.d.Sealed == nil {
		return onpath.Errorf(onpath.CodeUnsupported, "this server keeps no secret")
	}
	if !in.End {
		if err := s.d.Secrets.Rotate(); err != nil {
			return err
		}
	}
	if _, err := s.sealAgain(ctx, true); err != nil {
		return err
	}
	if !in.End {
		return nil
	}
	left, err := s.sealAgain(ctx, false)
	if err == nil && len(left) > 0 {
		e := onpath.Errorf(onpath.CodeConflict, "%d Secrets are sealed by the secret before, %s first", len(left), left[0])
		e.Remedy = "try again; apply or delete a Secret that stays"
		err = e
	}
	if err != nil {
		return err
	}
	return s.d.Secrets.EndRotation()
}

// sealAgain lists the Secrets that the secret before has sealed. If it is to write, the new secret
// seals them.
func (s *Join) sealAgain(ctx context.Context, write bool) (stale []string, err error) {
	list, _, err := s.d.Store.List(ctx, onpath.KindSecret, "")
	if err != nil {
		return nil, err
	}
	for _, o := range list {
		x := onpath.Clone(o.(*onpath.Secret))
		k, changed := onpath.KeyOf(x), false
		for key, text := range x.Spec.Sealed {
			again, err := s.d.Sealed.Again(sealed.Place(k.Tenant, k.Name, key), text)
			if err != nil {
				continue // it was another server's before
			}
			x.Spec.Sealed[key], changed = again, changed || again != text
		}
		if !changed {
			continue
		}
		stale = append(stale, k.String())
		if write {
			change := onpath.Change{Key: k, Object: x, Version: x.Metadata.Version}
			_, err := s.d.Store.Write(ctx, onpath.Batch{Changes: []onpath.Change{change}})
			if err != nil && onpath.CodeOf(err) != onpath.CodeConflict {
				return nil, err
			}
		}
	}
	return stale, nil
}
