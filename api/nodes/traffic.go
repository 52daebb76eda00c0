package nodes

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

const (
	trafficEvery = time.Second
	trafficKept  = 10 * time.Minute
)

// traffic is asked of all nodes once a second for all who look, and of none when nobody
// does.
type traffic struct {
	d Deps

	mu      sync.Mutex
	looking int
	stop    context.CancelFunc
	kept    []onpath.Traffic // the latest last
	more    chan struct{}    // closed when there is another
}

func (t *traffic) serve(w http.ResponseWriter, r *http.Request) error {
	q := router.Query(r, "tenant")
	if q.Err != nil {
		return q.Err
	}
	tenant := q.Get("tenant")
	if who := rights.WhoIs(r.Context()); who.Tenanted() {
		tenant = who.Tenant
	}
	t.look()
	defer t.lookAway()
	out := router.NewStream(w, "application/x-ndjson")
	out.Send(nil)
	for last := (time.Time{}); ; {
		list, more := t.since(last)
		for _, x := range list {
			if last = x.Time; tenant != "" {
				x = x.OfTenant(tenant)
			}
			b, err := json.Marshal(&x)
			if err != nil {
				return err
			}
			out.Send(append(b, '\n'))
		}
		select {
		case <-more:
		case <-r.Context().Done():
			out.End(router.Stopped(r.Context(), nil))
			return nil
		}
	}
}

// since are the samples after a time, and what is closed when there is another. What was
// kept when nobody looked any more grows old.
func (t *traffic) since(last time.Time) (list []onpath.Traffic, more <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.kept {
		if x.Time.After(last) {
			list = append(list, x)
		}
	}
	return list, t.more
}

// look begins to ask the nodes, if nobody looked.
func (t *traffic) look() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.more == nil {
		t.more = make(chan struct{})
	}
	if t.looking++; t.looking > 1 {
		return
	}
	t.forget(time.Now())
	var ctx context.Context
	ctx, t.stop = context.WithCancel(context.Background())
	go t.sample(ctx)
}

func (t *traffic) lookAway() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.looking--; t.looking == 0 {
		t.stop()
	}
}

func (t *traffic) sample(ctx context.Context) {
	tick := time.NewTicker(trafficEvery)
	defer tick.Stop()
	var before *wire.PerNode[*onpath.Counters]
	var at time.Time
	for {
		now, err := eachNode(ctx, t.d.Hub.Connected(), t.d.Counters.Counters)
		if err != nil {
			return
		}
		took := time.Now()
		if before != nil {
			t.keep(rates(countedNames(ctx, t.d.Store), before, now, took, took.Sub(at)))
		}
		before, at = now, took
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (t *traffic) keep(x onpath.Traffic) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, x)
	t.forget(x.Time)
	close(t.more)
	t.more = make(chan struct{})
}

// forget lets go of samples that are too old at a time.
func (t *traffic) forget(now time.Time) {
	t.kept = slices.DeleteFunc(t.kept, func(x onpath.Traffic) bool { return now.Sub(x.Time) > trafficKept })
}

// rates are what was counted between two looks, by the objects that it is of.
func rates(names counted, before, now *wire.PerNode[*onpath.Counters], at time.Time, took time.Duration) onpath.Traffic {
	x := onpath.Traffic{Time: at.UTC(), Chains: map[string]onpath.Carried{}, Instances: map[string]onpath.Carried{},
		Nodes: map[string]onpath.Carried{}, Away: now.Away}
	for node, c := range now.Nodes {
		old, ok := before.Nodes[node]
		if !ok {
			continue
		}
		for id, v := range c.Vports {
			was := old.Vports[id]
			carried := rate(v.Out, was.Out, took)
			switch name, kind := names.vports[id], names.kinds[id]; {
			case kind == onpath.KindInstance && names.nodes[id] == node: // others count what they send there
				add(x.Instances, name, carried, v, was, took)
			case kind == onpath.KindNode && name == node:
				add(x.Nodes, name, rate(v.In, was.In, took), v, was, took)
			}
		}
		for id, p := range c.Paths {
			if name := names.paths[id]; name != "" {
				none := onpath.VportCounters{}
				add(x.Chains, name, rate(p.Steered, old.Paths[id].Steered, took), none, none, took)
			}
		}
	}
	return x
}

func rate(now, was onpath.Tally, took time.Duration) onpath.Carried {
	if now.Packets < was.Packets || took <= 0 {
		return onpath.Carried{}
	}
	seconds := took.Seconds()
	return onpath.Carried{Packets: float64(now.Packets-was.Packets) / seconds, Bits: 8 * float64(now.Bytes-was.Bytes) / seconds}
}

func add(to map[string]onpath.Carried, name string, c onpath.Carried, v, was onpath.VportCounters, took time.Duration) {
	sum := to[name]
	sum.Packets, sum.Bits = sum.Packets+c.Packets, sum.Bits+c.Bits
	for why, n := range v.Dropped {
		if n > was.Dropped[why] {
			if sum.Dropped == nil {
				sum.Dropped = map[onpath.DropReason]float64{}
			}
			sum.Dropped[why] += float64(n-was.Dropped[why]) / took.Seconds()
		}
	}
	to[name] = sum
}

// counted says which object a counter is of.
type counted struct {
	vports map[onpath.VportID]string
	kinds  map[onpath.VportID]onpath.Kind
	nodes  map[onpath.VportID]string // of instances
	paths  map[onpath.PathID]string
}

func countedNames(ctx context.Context, store onpath.Store) counted {
	c := counted{map[onpath.VportID]string{}, map[onpath.VportID]onpath.Kind{}, map[onpath.VportID]string{},
		map[onpath.PathID]string{}}
	for _, kind := range []onpath.Kind{onpath.KindInstance, onpath.KindNode, onpath.KindChain} {
		list, _, err := store.List(ctx, kind, "")
		if err != nil {
			continue // the next second knows
		}
		for _, o := range list {
			name := o.Meta().Tenant + "/" + o.Meta().Name
			switch o := o.(type) {
			case *onpath.Instance:
				for _, v := range []onpath.VportID{o.Spec.Vport, o.Spec.Back} {
					c.vports[v], c.kinds[v], c.nodes[v] = name, kind, o.Spec.Node
				}
			case *onpath.Node:
				c.vports[o.Status.Edge], c.kinds[o.Status.Edge] = o.Metadata.Name, kind
			case *onpath.Chain:
				c.paths[o.Status.Path] = name
			}
		}
	}
	delete(c.vports, 0)
	delete(c.kinds, 0)
	delete(c.paths, 0)
	return c
}
