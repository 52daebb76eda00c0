package api

import (
	"log/slog"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/store/mem"
)

// TestEveryRouteSaysWhoMay: a route without its access is nobody's, and there is none.
func TestEveryRouteSaysWhoMay(t *testing.T) {
	hub := session.NewHub(slog.New(slog.DiscardHandler), nil)
	defer hub.Close()
	s, err := New(Options{Store: mem.New(mem.Options{}), Controller: noController{}, Hub: hub, Dir: t.TempDir(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for path, item := range s.doc.OpenAPI().Paths {
		for _, op := range []string{idOf(item.Get), idOf(item.Put), idOf(item.Post), idOf(item.Delete)} {
			if n++; op != "" && s.access[op].verb == "" {
				t.Errorf("%s (%s) does not say who may use it", path, op)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d operations were found", n)
	}
}

// noController is one that nothing is asked of.
type noController struct{ Controller }

func idOf(o *huma.Operation) string {
	if o == nil {
		return ""
	}
	return o.OperationID
}
