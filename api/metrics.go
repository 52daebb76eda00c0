package api

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
)

type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
	watches  prometheus.Gauge
}

func newMetrics(registry *prometheus.Registry, hub *session.Hub, use func() onpath.StoreUse, pool Pool) (*metrics, error) {
	m := &metrics{
		registry: registry,
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "onpath_api_request_seconds", Help: "Duration of API requests other than streams.",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10},
		}, []string{"route", "status"}),
		watches: prometheus.NewGauge(prometheus.GaugeOpts{Name: "onpath_api_watches", Help: "Watches that are open."}),
	}
	all := append(m.own(hub, use, pool), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			if _, twice := err.(prometheus.AlreadyRegisteredError); !twice {
				return nil, err
			}
		}
	}
	return m, nil
}

// own are the metrics of the server, those of every Go process apart.
func (m *metrics) own(hub *session.Hub, use func() onpath.StoreUse, pool Pool) []prometheus.Collector {
	size := func(name, help string, of func(onpath.StoreUse) int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(of(use())) })
	}
	return []prometheus.Collector{m.requests, m.watches,
		size("onpath_store_bytes", "What the store holds, old versions included; of an etcd cluster: the file of its fullest member.",
			func(u onpath.StoreUse) int64 { return u.InUse }),
		size("onpath_store_quota_bytes", "What it may hold; 0: nobody says, as etcd before 3.6.",
			func(u onpath.StoreUse) int64 { return u.Quota }),
		size("onpath_store_waiting_bytes", "Changes that wait for watches which are not read.",
			func(u onpath.StoreUse) int64 { return u.Waiting }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "onpath_nodes_connected", Help: "Nodes with a session to this server."},
			func() float64 { return float64(len(hub.Connected())) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "onpath_clock_held",
			Help: "1 while a leap of the server's clock holds reservations and money; 0: the clock is believed."},
			func() float64 {
				if pool != nil && pool.Held() != nil {
					return 1
				}
				return 0
			})}
}

// Metrics describes what a server serves, for the reference.
func Metrics() ([]prometheus.Collector, error) {
	m, err := newMetrics(prometheus.NewRegistry(), nil, nil, nil)
	if err != nil {
		return nil, err
	}
	return m.own(nil, nil, nil), nil
}

func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) error {
	promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
	return nil
}
