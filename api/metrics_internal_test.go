package api

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
)

// leapt is a pool whose clock has leapt, or not.
type leapt struct {
	Pool
	err error
}

func (p *leapt) Held() error { return p.err }

// TestClockMetric: the metric says that a leap of the clock holds decisions, for as long as it
// does.
func TestClockMetric(t *testing.T) {
	pool, registry := &leapt{}, prometheus.NewRegistry()
	if _, err := newMetrics(registry, session.NewHub(slog.New(slog.DiscardHandler), nil), func() (u onpath.StoreUse) { return u }, pool); err != nil {
		t.Fatal(err)
	}
	for want, err := range map[float64]error{0: nil, 1: onpath.Errorf(onpath.CodeUnavailable, "the clock has leapt")} {
		pool.err = err
		if got := gauge(t, registry, "onpath_clock_held"); got != want {
			t.Errorf("with %v it is %v, want %v", err, got, want)
		}
	}
}

func gauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
