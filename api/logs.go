package api

import (
	"net/http"

	"github.com/onpath/onpath"
)

func (s *Server) logs(w http.ResponseWriter, r *http.Request) error {
	q := query(r, "tail", "follow", "previous", "since", "timestamps")
	request := onpath.LogsRequest{Tail: q.integer("tail", -1), Follow: q.boolean("follow"), Previous: q.boolean("previous"),
		Since: q.duration("since"), Timestamps: q.boolean("timestamps")}
	if q.err != nil {
		return q.err
	}
	if request.Follow && request.Previous {
		return onpath.Errorf(onpath.CodeInvalid, "an earlier run writes nothing more: there is nothing to follow")
	}
	i, err := s.instance(r.Context(), r.PathValue("tenant"), r.PathValue("name"))
	if err != nil {
		return err
	}
	request.Instance = i.Metadata.Tenant + "/" + i.Metadata.Name
	return s.relay(w, r, "text/plain; charset=utf-8", i.Spec.Node, onpath.OpLogs, request)
}
