package api

import (
	"log/slog"
	"testing"

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
	if ids := s.router.Unowned(); len(ids) > 0 {
		t.Errorf("operations that do not say who may use them: %v", ids)
	}
	if n := len(s.router.OpenAPI().Paths); n < 50 {
		t.Errorf("only %d paths were found", n)
	}
}

// noController is one that nothing is asked of.
type noController struct{ Controller }
