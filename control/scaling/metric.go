package scaling

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/scale"
)

// askMetric has a chain's value pulled from its Prometheus server, if it is time. Callers hold
// mu.
func (c *Scaling) askMetric(ctx context.Context, k onpath.Key, o *onpath.Chain, x *scaled, now time.Time) {
	m := o.Spec.Scaling.Metric
	every := min(max(time.Duration(o.Spec.Scaling.Window)/8, time.Second), 15*time.Second)
	if m.Source != onpath.MetricPulled || x.asking || now.Sub(x.asked) < every {
		return
	}
	x.asked = now
	if !c.mayPull(k.Tenant, m.URL) {
		x.disbelieve(now, fmt.Sprintf("the operator does not permit tenant %s to ask %s (metricSources in the Tenant)", k.Tenant, m.URL))
		return
	}
	x.asking = true
	go func() {
		value, at, err := pull(ctx, m, every)
		c.mu.Lock()
		defer c.mu.Unlock()
		x.asking = false
		now := c.o.Clock().UTC()
		if err != nil {
			x.disbelieve(now, fmt.Sprintf("%s cannot be asked: %v", m.URL, err))
			return
		}
		x.take(value, at, now, time.Duration(o.Spec.Scaling.Window))
	}()
}

// mayPull reports whether the server asks a URL for a tenant: it stands where tenants may
// not reach.
func (c *Scaling) mayPull(tenant, url string) bool {
	t := c.tenants[tenant]
	return tenant == onpath.OperatorTenant || t != nil && slices.Contains(t.Spec.MetricSources, strings.TrimRight(url, "/"))
}

// pull asks a Prometheus server.
func pull(ctx context.Context, m onpath.ScalingMetric, limit time.Duration) (value float64, at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// It leads nowhere else: no proxy, no redirect.
	client, err := api.NewClient(api.Config{Address: m.URL, Client: &http.Client{
		Transport:     boundAnswers{&http.Transport{DisableKeepAlives: true}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}})
	if err != nil {
		return 0, at, err
	}
	result, _, _, err := prometheus.NewAPI(client).Query(ctx, m.Query, time.Time{})
	if err != nil {
		return 0, at, err
	}
	switch r := result.(type) {
	case *model.Scalar:
		return float64(r.Value), r.Timestamp.Time(), nil
	case model.Vector:
		if len(r) == 1 {
			return float64(r[0].Value), r[0].Timestamp.Time(), nil
		}
		return 0, at, fmt.Errorf("the query has %d results, not one", len(r))
	}
	return 0, at, fmt.Errorf("the query's result is a %s, not one number", result.Type())
}

// maxMetricAnswer is how many bytes a Prometheus server may answer with: one number is asked for.
const maxMetricAnswer = 1 << 20

// boundAnswers ends answers that are longer.
type boundAnswers struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b boundAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = &boundBody{answer.Body, maxMetricAnswer}
	}
	return answer, err
}

type boundBody struct {
	io.ReadCloser
	left int
}

func (b *boundBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes: write a query whose result is one number", maxMetricAnswer)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// ownValues gives chains the values that the nodes count, and what their traffic is.
func (c *Scaling) ownValues(r round, before map[onpath.Key]round) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, o := range c.scalingChains() {
		x := c.scaled[k]
		last, ok := before[k]
		if !ok {
			continue
		}
		took := r.at.Sub(last.at).Seconds()
		a, b := last.paths[o.Status.Path], r.paths[o.Status.Path]
		if x == nil || took <= 0 || b.who == "" || a.who != b.who || b.Packets < a.Packets || b.Bytes < a.Bytes || b.flows < a.flows {
			continue
		}
		x.demand.Add(scale.Sample{At: r.at, Value: float64(b.Packets-a.Packets) / took})
		var value float64
		switch o.Spec.Scaling.Metric.Source {
		case onpath.MetricBytes:
			value = float64(b.Bytes-a.Bytes) / took
		case onpath.MetricPackets:
			value = float64(b.Packets-a.Packets) / took
		case onpath.MetricNewFlows:
			value = float64(b.flows-a.flows) / took
		case onpath.MetricDropped:
			value = dropped(o, &last, &r) / took
		default:
			continue
		}
		x.take(value, r.at, r.at, time.Duration(o.Spec.Scaling.Window))
	}
}

// dropped are the packets that a chain's elements were given and did not give back,
// though they should have.
func dropped(o *onpath.Chain, before, now *round) (sum float64) {
	for i := range o.Spec.Through {
		k := deploymentKey(o, &o.Spec.Through[i])
		a, b := before.deployments[k], now.deployments[k]
		if a.who != b.who {
			continue
		}
		sum += math.Max(float64(b.lost)-float64(a.lost), 0)
		if b.keeps {
			sum += math.Max(float64(b.in-a.in)-float64(b.out-a.out), 0)
		}
	}
	return sum
}
