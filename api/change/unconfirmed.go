package change

import (
	"context"
	"net/http"
	"slices"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

// changeID names an apply that waits for its confirmation.
type changeID struct {
	ID string `path:"id"`
}

func (s *undoer) registerConfirm(rt *router.Router) {
	router.RegisterSmall(rt, http.MethodGet, "/v1/confirm", "list-unconfirmed",
		"Applies that wait for their confirmation, the one that is undone first before others", s.listUnconfirmed)
	router.RegisterSmall(rt, http.MethodPost, "/v1/confirm/{id}", "confirm",
		"Keep an apply that waits for its confirmation", s.confirm)
	router.RegisterSmall(rt, http.MethodDelete, "/v1/confirm/{id}", "undo",
		"Undo an apply that waits for its confirmation, now", s.undoNow)
}

func (s *undoer) listUnconfirmed(ctx context.Context, _ *struct{}) (*router.Body[[]wire.Unconfirmed], error) {
	who := rights.WhoIs(ctx)
	all := s.pending.list()
	return router.NewBody(slices.DeleteFunc(all,
		func(u wire.Unconfirmed) bool { return mayConfirm(who, u.Pending) != nil })), nil
}

func (s *undoer) confirm(ctx context.Context, in *changeID) (*struct{}, error) {
	s.writer.writing.take(rights.WhoIs(ctx).Tenant) // what is being undone cannot be kept any more
	defer s.writer.writing.pass()
	u, ok := s.pending.get(in.ID)
	if !ok {
		return nil, notPending(in.ID)
	}
	if err := mayConfirm(rights.WhoIs(ctx), u.Pending); err != nil {
		return nil, err
	}
	// A caller that gives up now could not know whether it was confirmed.
	return nil, s.pending.confirm(context.WithoutCancel(ctx), u)
}

func (s *undoer) undoNow(ctx context.Context, in *changeID) (*router.Body[wire.Undone], error) {
	who := rights.WhoIs(ctx)
	// A caller that gives up now could not know whether it was undone.
	done, err := s.undo(context.WithoutCancel(ctx), in.ID, "was taken back by "+who.URI(),
		func(p wire.Pending) error { return mayConfirm(who, p) })
	if err != nil {
		return nil, err
	}
	return router.NewBody(done), nil
}

// mayConfirm refuses who may neither keep nor undo p, nor know of it.
func mayConfirm(who auth.Identity, p wire.Pending) error {
	return rights.Authorize(who, rights.Confirm, "", p.Tenant, p.ID)
}

func notPending(id string) error {
	e := onpath.Errorf(onpath.CodeNotFound, "nothing waits for a confirmation as %s: it was confirmed, or undone at its time", id)
	e.Remedy = "onpath confirm lists what waits"
	return e
}

// list is what waits, by deadline.
func (p *pending) list() []wire.Unconfirmed {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]wire.Unconfirmed, 0, len(p.open))
	for _, u := range p.open {
		all = append(all, u.summary())
	}
	slices.SortFunc(all, func(a, b wire.Unconfirmed) int { return a.Deadline.Compare(b.Deadline) })
	return all
}

// summary is what the apply did.
func (u undo) summary() wire.Unconfirmed {
	out := wire.Unconfirmed{Pending: u.Pending, Changes: make([]wire.ObjectChange, 0, len(u.Steps))}
	for _, step := range u.Steps {
		c := wire.ObjectChange{ObjectRef: step.Key, Action: wire.Updated}
		switch {
		case step.UID == "":
			c.Action = wire.Deleted
		case len(step.Before) == 0:
			c.Action = wire.Created
		}
		out.Changes = append(out.Changes, c)
	}
	return out
}
