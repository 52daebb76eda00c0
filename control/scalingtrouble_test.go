package control_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// told is a Prometheus server whose every query has about one value.
type told struct {
	s       *site
	address string
	server  *http.Server
	value   atomic.Uint64 // of a float64; answers differ from it by a little
	asked   atomic.Int64
}

func (p *told) serve() {
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		p.s.t.Fatal(err)
	}
	p.address = l.Addr().String()
	p.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"scalar","result":[%.3f,"%g"]}}`,
			float64(p.s.now().UnixMilli())/1000, math.Float64frombits(p.value.Load())*(1+0.001*float64(p.asked.Add(1)%7)))
	})}
	go p.server.Serve(l)
}

// TestTroubles: values that are missing, late or absurd, a Prometheus server that is gone,
// and a server that is replaced meanwhile: scaling stops, says why, and goes on.
func TestTroubles(t *testing.T) {
	t.Parallel()
	s := threeNodes(t)
	chain := web(2)
	chain.Spec.Scaling = &onpath.Scaling{
		Window: onpath.Duration(20 * time.Second), Elements: map[string]onpath.ElementScaling{"fw": {Max: 3}},
	}
	s.apply(chain)
	s.until("active", s.active)
	scaling := func() onpath.ScalingStatus {
		if c := s.chain("web"); c.Status.Scaling != nil {
			return *c.Status.Scaling
		}
		return onpath.ScalingStatus{}
	}
	push := func(value float64, late time.Duration) error {
		return s.c.PushMetric(context.Background(), onpath.KeyOf(chain), value, s.now().Add(-late))
	}
	nothing := func() {}
	// reaches has time pass, with something done in each second of it.
	reaches := func(phase onpath.ScalingPhase, why string, each func()) {
		t.Helper()
		s.until(fmt.Sprintf("%s: %q", phase, why), func() bool {
			s.lead(time.Second)
			each()
			time.Sleep(5 * time.Millisecond)
			got := scaling()
			return got.Phase == phase && strings.Contains(got.Message, why)
		})
		if got := scaling(); got.Wanted["fw"] != 2 || got.Trial != nil {
			t.Fatalf("%s: %q: %+v", phase, why, got)
		}
	}
	pushed := 0
	good := func() { pushed++; _ = push(100+0.1*float64(pushed%7), 0) }
	s.until("the first value is awaited", func() bool { // no time passes: it does not wait for long
		return scaling().Phase == onpath.ScalingHeld && strings.Contains(scaling().Message, "the first value is awaited")
	})
	reaches(onpath.ScalingStopped, "no value has come", nothing)
	reaches(onpath.ScalingWatching, "", good)
	reaches(onpath.ScalingStopped, "no value has come for 20s", nothing)
	reaches(onpath.ScalingWatching, "", good)
	reaches(onpath.ScalingStopped, "no value has come for 20s", func() {
		if err := push(100, time.Minute); err == nil || !strings.Contains(err.Error(), "old") {
			t.Fatalf("a value of a minute ago: %v", err)
		}
	})
	reaches(onpath.ScalingWatching, "", good)
	for _, value := range []float64{math.NaN(), -1e300, math.Inf(1)} {
		if err := push(value, 0); err == nil || !strings.Contains(err.Error(), "absurd") {
			t.Fatalf("%g: %v", value, err)
		}
		reaches(onpath.ScalingStopped, "absurd", nothing)
		reaches(onpath.ScalingWatching, "", good)
	}
	for range 25 {
		s.lead(time.Second)
		good()
	}
	if err := push(-1e7, 0); err == nil || !strings.Contains(err.Error(), "more than 10000 times") {
		t.Fatalf("-1e7 after values of 100: %v", err)
	}
	reaches(onpath.ScalingStopped, "more than 10000 times", nothing)
	again := func() {
		s.stop()
		s.start()
		for _, n := range s.nodes {
			n.connect()
		}
	}
	again()
	for range 3 { // two good values are not enough for another server, either
		s.lead(time.Second)
		good()
		time.Sleep(60 * time.Millisecond)
	}
	reaches(onpath.ScalingStopped, "more than 10000 times", nothing)
	reaches(onpath.ScalingWatching, "", good)

	p := &told{s: s, address: "127.0.0.1:0"}
	p.value.Store(math.Float64bits(0.1))
	p.serve()
	tenant := object[*onpath.Tenant](onpath.KindTenant, "", "default")
	if o, err := s.store.Get(context.Background(), onpath.KeyOf(tenant)); err == nil {
		tenant = onpath.Clone(o.(*onpath.Tenant))
	}
	chain = onpath.Clone(s.chain("web"))
	chain.Spec.Scaling.Metric = onpath.ScalingMetric{Source: onpath.MetricPulled, URL: "http://" + p.address, Query: "up"}
	s.apply(chain)
	reaches(onpath.ScalingStopped, "does not permit", nothing)
	tenant.Spec.MetricSources = []string{"http://" + p.address}
	s.apply(tenant)
	reaches(onpath.ScalingWatching, "", nothing)
	_ = p.server.Close()
	reaches(onpath.ScalingStopped, "cannot be asked", nothing)
	again()
	reaches(onpath.ScalingStopped, "cannot be asked", nothing)
	p.serve()
	reaches(onpath.ScalingWatching, "", nothing)
	_ = p.server.Close()
	if !s.hasEvent("ScalingStopped") {
		t.Error("no event tells it")
	}
	if d := scaling().Decisions; len(d) > 0 {
		t.Errorf("decisions were taken: %+v", d)
	}
}
