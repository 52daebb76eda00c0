package resources

import (
	"context"
	"net/http"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

// registerHistory adds the operation of one kind.
func (s *Resources) registerHistory(kind onpath.Kind, path string) {
	id := "history-" + strings.ToLower(string(kind))
	s.router.Allow(id, rights.Read, kind)
	op := router.ItemOperation(http.MethodGet, path+"/history", id, "The last versions of one of the "+kind.Plural()+", the oldest first")
	router.Register(s.router, op, func(ctx context.Context, in *router.Item) (*router.Body[[]wire.ObjectVersion], error) {
		list, err := s.versions(ctx, in.Key(kind))
		if err != nil {
			return nil, err
		}
		return router.NewBody(list), nil
	})
}

func (s *Resources) versions(ctx context.Context, k onpath.Key) ([]wire.ObjectVersion, error) {
	now, err := s.d.Store.Get(ctx, k)
	if err != nil {
		return nil, s.madeByChain(ctx, k, err)
	}
	return s.d.Changes.Versions(ctx, now)
}
