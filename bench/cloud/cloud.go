// Package cloud measures somebody's cloud between three nodes that are there (GNFC, II and
// IV): what its network passes, and how much of throughput and round trip a function on the
// third node takes, by each tunnel.
package cloud

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/measure/trial"
)

// Network is the cloud under test, by way of the server.
type Network interface {
	// Try has two nodes try the network between them.
	Try(ctx context.Context, r trial.Request) (*trial.Result, error)
	// Steer has the sender's traffic cross the function, or go on directly, and returns
	// when it does.
	Steer(ctx context.Context, steer bool) error
	// Use changes the tunnel of all three nodes, and says by which one packets then go.
	Use(ctx context.Context, tunnel string) (by string, err error)
}

// Options of a run.
type Options struct {
	// From sends, Through runs the function, To receives: names of nodes.
	From, Through, To string
	// Address of the receiver, at which the sender reaches it; default its underlay's.
	Address netip.Addr
	// Type is the kind of machine that runs the function, for people.
	Type string
	// Tunnels to compare; none: the one that is in use.
	Tunnels  []string
	Rounds   int
	For      time.Duration // of each measurement of throughput
	Echoes   int           // of each measurement of round trips
	Quick    bool          // the figures mean nothing
	Progress func(format string, args ...any)
}

// Figure is one figure over the rounds.
type Figure struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`  // lower quartile
	High   float64 `json:"high"` // upper quartile
	Rounds int     `json:"rounds"`
}

// Way is how packets go from the sender to the receiver, and what came of it.
type Way struct {
	Name      string  `json:"name"` // "direct", or the tunnel
	TCP       *Figure `json:"tcp,omitempty"`
	UDP       *Figure `json:"udp,omitempty"`       // bits a second
	RoundTrip *Figure `json:"roundTrip,omitempty"` // milliseconds
	// Why says what could not be measured.
	Why []string `json:"why,omitempty"`
}

// Pair is what the network passes from one node to another.
type Pair struct {
	From    string         `json:"from"`
	To      string         `json:"to"`
	Packets []trial.Packet `json:"packets,omitempty"`
	Why     string         `json:"why,omitempty"` // why nothing is known
}

// Report is all of a run.
type Report struct {
	From    string `json:"from"`
	Through string `json:"through"`
	To      string `json:"to"`
	Type    string `json:"type"`
	Quick   bool   `json:"quick,omitempty"`
	Pairs   []Pair `json:"pairs"`
	Ways    []Way  `json:"ways"`
	// Echo is the protocol that round trips are measured by: icmp, or udp where the network
	// drops it.
	Echo onpath.Protocol `json:"echo"`
}

// direct is the way without function.
const direct = "direct"

// Run measures. What has been found is returned with an error, too.
func Run(ctx context.Context, n Network, o Options) (*Report, error) {
	r := &Report{From: o.From, Through: o.Through, To: o.To, Type: o.Type, Quick: o.Quick}
	for _, p := range [][2]string{{o.From, o.Through}, {o.Through, o.To}, {o.From, o.To}} {
		o.Progress("which packets get from %s to %s", p[0], p[1])
		pair := Pair{From: p[0], To: p[1]}
		t, err := n.Try(ctx, trial.Request{Kind: trial.Network, From: p[0], To: p[1]})
		if err != nil && ctx.Err() != nil {
			return r, ctx.Err()
		}
		if pair.Packets, pair.Why = packets(t, err); err != nil && onpath.CodeOf(err) != onpath.CodeUnavailable {
			return r, err
		}
		r.Pairs = append(r.Pairs, pair)
	}
	r.Echo = trial.ByUDP
	if last := (trial.Result{Packets: r.Pairs[2].Packets}); last.Passes(trial.ICMP) {
		r.Echo = trial.ByICMP
	}
	if len(o.Tunnels) == 0 {
		o.Tunnels = []string{""}
	}
	m := measuring{Network: n, o: o, echo: r.Echo, samples: map[string][]float64{}, why: map[string][]string{}}
	err := m.all(ctx)
	r.Ways = m.ways()
	return r, err
}

func packets(t *trial.Result, err error) ([]trial.Packet, string) {
	if err != nil {
		return nil, err.Error()
	}
	return t.Packets, ""
}

// measuring collects samples of each way and metric.
type measuring struct {
	Network
	o       Options
	echo    onpath.Protocol
	order   []string // of ways
	samples map[string][]float64
	why     map[string][]string
}

// all measures each tunnel against the direct way.
func (m *measuring) all(ctx context.Context) error {
	for _, tunnel := range m.o.Tunnels {
		by, err := m.Use(ctx, tunnel)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			m.note(tunnel, err)
			continue
		}
		for round := range m.o.Rounds {
			ways := []string{direct, by}
			if round%2 == 1 { // a network that becomes slower or faster favours no one
				slices.Reverse(ways)
			}
			for _, way := range ways {
				m.o.Progress("round %d of %d: %s", round+1, m.o.Rounds, way)
				if err := m.Steer(ctx, way != direct); err != nil {
					return err
				}
				if err := m.once(ctx, way); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// The metrics.
const (
	metricTCP       = "TCP"
	metricUDP       = "UDP"
	metricRoundTrip = "round trip"
)

// once measures one way once.
func (m *measuring) once(ctx context.Context, way string) error {
	base := trial.Request{From: m.o.From, To: m.o.To, Address: m.o.Address}
	echoes, tcp, udp := base, base, base
	echoes.Kind, echoes.Protocol, echoes.Count = trial.RoundTrip, m.echo, m.o.Echoes
	tcp.Kind, tcp.Protocol, tcp.For = trial.Throughput, trial.ByTCP, onpath.Duration(m.o.For)
	udp.Kind, udp.Protocol, udp.For = trial.Throughput, trial.ByUDP, onpath.Duration(m.o.For)
	for metric, r := range map[string]trial.Request{metricRoundTrip: echoes, metricTCP: tcp, metricUDP: udp} {
		t, err := m.Try(ctx, r)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case onpath.CodeOf(err) == onpath.CodeUnavailable:
			m.note(way, fmt.Errorf("%s: %w", metric, err))
		case err != nil:
			return err
		case metric == metricRoundTrip:
			m.add(way, metric, middle(t.RoundTrips))
		case t.Rate == 0:
			m.note(way, errors.New(metric+": nothing arrived"))
		default:
			m.add(way, metric, t.Rate)
		}
	}
	return nil
}

// middle is the median of round trips, in milliseconds.
func middle(list []onpath.Duration) float64 {
	ms := make([]float64, len(list))
	for i, d := range list {
		ms[i] = float64(d) / float64(time.Millisecond)
	}
	return quantile(ms, 0.5)
}

func (m *measuring) know(way string) {
	if !slices.Contains(m.order, way) {
		m.order = append(m.order, way)
	}
}

func (m *measuring) note(way string, err error) {
	m.know(way)
	if text := err.Error(); !slices.Contains(m.why[way], text) {
		m.why[way] = append(m.why[way], text)
	}
}

func (m *measuring) add(way, metric string, v float64) {
	m.know(way)
	if !math.IsNaN(v) {
		m.samples[way+"/"+metric] = append(m.samples[way+"/"+metric], v)
	}
}

func (m *measuring) ways() (list []Way) {
	for _, way := range m.order {
		slices.Sort(m.why[way])
		list = append(list, Way{Name: way, TCP: m.figure(way, metricTCP), UDP: m.figure(way, metricUDP),
			RoundTrip: m.figure(way, metricRoundTrip), Why: m.why[way]})
	}
	return list
}

func (m *measuring) figure(way, metric string) *Figure {
	v := m.samples[way+"/"+metric]
	if len(v) == 0 {
		return nil
	}
	return &Figure{Median: quantile(v, 0.5), Low: quantile(v, 0.25), High: quantile(v, 0.75), Rounds: len(v)}
}

// quantile of values, interpolated between neighbours.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	at := q * float64(len(v)-1)
	i := min(int(at), len(v)-1)
	next := min(i+1, len(v)-1)
	return v[i] + (at-float64(i))*(v[next]-v[i])
}
