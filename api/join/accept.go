package join

import (
	"context"
	"net/http"

	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
)

func (s *Join) registerAccept() {
	router.RegisterSmall(s.router, http.MethodPost, "/v1/nodes/{name}/accept", "accept-node",
		"Have a node that waits follow this server's store",
		func(ctx context.Context, in *struct {
			Name string `path:"name"`
		}) (*struct{}, error) {
			if err := s.d.Admission.AcceptNode(ctx, in.Name); err != nil {
				return nil, err
			}
			s.d.Log.Info("node accepted", "by", rights.WhoIs(ctx).URI(), "node", in.Name)
			return nil, nil
		})
}
