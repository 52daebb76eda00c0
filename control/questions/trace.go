// Package questions answers what users ask of traffic: where a packet goes, what a flow's hops
// count, and whether the rules keep what chains promise.
package questions

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/look"
	"github.com/onpath/onpath/plan"
)

// traceTimeout bounds how long a node may take to answer, which may have been asked just before.
const traceTimeout = 4 * time.Second

// Hub reaches the nodes.
type Hub interface {
	Call(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error)
}

// Questions asks nodes for what answers need. Make one with New.
type Questions struct {
	hub   Hub
	looks *look.Shared
}

// New makes Questions.
func New(hub Hub) *Questions {
	return &Questions{hub: hub, looks: look.New(func(ctx context.Context, node string,
		op onpath.NodeOp, request any) (io.ReadWriteCloser, error) {
		return hub.Call(ctx, node, op, request)
	})}
}

// World is what answers are made from.
type World struct {
	*plan.Snapshot                   // which stays as it is
	Silent         map[string]string // why nodes cannot be asked
}

// Trace finds the way of a packet and of its answer, from the plans in force
// and the nodes' flow entries. Nodes that do not answer are named in a warning.
func (c *Questions) Trace(ctx context.Context, w World, r onpath.TraceRequest) (*onpath.Trace, error) {
	in := plan.TraceInput{Snapshot: w.Snapshot, Request: r}
	if err := checkGateway(in.Snapshot, r.Gateway); err != nil {
		return nil, err
	}
	in.Silent = maps.Clone(w.Silent)
	asked := flowsAsked{in: &in}
	asked.tuple(ctx, c, r.Tuple)
	t := plan.Trace(in)
	for range onpath.MaxElements { // what each look finds may go on under other addresses
		before := len(asked.paths) + len(asked.tuples)
		for _, p := range changingPaths(&in) {
			asked.path(ctx, c, p)
		}
		for _, h := range slices.Concat(t.Forward, t.Reverse) {
			if h.Tuple != nil {
				asked.tuple(ctx, c, *h.Tuple)
			}
		}
		if len(asked.paths)+len(asked.tuples) == before {
			break
		}
		t = plan.Trace(in)
	}
	return t, ctx.Err()
}

// flowsAsked is what the nodes were asked for, which is asked once.
type flowsAsked struct {
	in     *plan.TraceInput
	paths  []onpath.PathID
	tuples []onpath.Tuple
}

func (a *flowsAsked) path(ctx context.Context, c *Questions, p onpath.PathID) {
	if !slices.Contains(a.paths, p) {
		a.paths = append(a.paths, p)
		c.ask(ctx, a.in, onpath.FlowFilter{Path: p})
	}
}

// tuple asks for both directions.
func (a *flowsAsked) tuple(ctx context.Context, c *Questions, tu onpath.Tuple) {
	covered := func(o onpath.Tuple) bool {
		f := onpath.FlowFilter{Tuple: &o}
		return f.Matches(onpath.FlowEntry{Tuple: tu})
	}
	if !slices.ContainsFunc(a.tuples, covered) {
		a.tuples = append(a.tuples, tu)
		c.ask(ctx, a.in, onpath.FlowFilter{Tuple: &tu})
	}
}

// checkGateway refuses a node at which no packets enter, and names those at which
// they do; "" stands for all of them.
func checkGateway(s *plan.Snapshot, name string) error {
	if name == "" {
		return nil
	}
	var names []string
	for k, o := range s.Objects {
		if n, ok := o.(*onpath.Node); ok && n.Gateway() && k.Name != name {
			names = append(names, k.Name)
		}
	}
	slices.Sort(names)
	remedy := "gateways are " + strings.Join(names, ", ")
	if len(names) == 0 {
		remedy = "no node has uplinks yet: name some in its Node object, or with onpath node --uplink"
	}
	var e *onpath.Error
	n, ok := s.Objects[onpath.Key{Kind: onpath.KindNode, Name: name}].(*onpath.Node)
	switch {
	case !ok:
		e = onpath.Errorf(onpath.CodeNotFound, "there is no node %s", name)
	case !n.Gateway():
		e = onpath.Errorf(onpath.CodeInvalid, "node %s is no gateway: it has no uplinks, so no packets enter there", name)
	default:
		i := slices.IndexFunc(n.Status.Conditions, func(c onpath.Condition) bool { return c.Type == "Gateway" && c.Status == onpath.False })
		if i < 0 {
			return nil
		}
		e = onpath.Errorf(onpath.CodeInvalid, "node %s is not used as a gateway: %s", name, n.Status.Conditions[i].Message)
	}
	e.Remedy = remedy
	return e
}

// Counters are what a node has counted: it is asked once a second at most for all who want to
// know.
func (c *Questions) Counters(ctx context.Context, node string) (*onpath.Counters, error) {
	seen, err := c.looks.Ask(ctx, node, nil)
	return seen.Counters, err
}

// ask adds what the nodes say.
func (c *Questions) ask(ctx context.Context, in *plan.TraceInput, f onpath.FlowFilter) {
	ctx, cancel := context.WithTimeout(ctx, traceTimeout)
	defer cancel()
	if in.Flows == nil {
		in.Flows, in.Counters = map[string][]onpath.FlowEntry{}, map[string]*onpath.Counters{}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for n := range in.Snapshot.States {
		if in.Silent[n] != "" {
			continue
		}
		wg.Go(func() {
			seen, err := c.looks.Ask(ctx, n, &f)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				in.Silent[n] = err.Error()
				return
			}
			in.Flows[n], in.Counters[n] = append(in.Flows[n], seen.Flows...), seen.Counters
		})
	}
	wg.Wait()
}

// changingPaths are the paths of the entries found whose elements may change
// addresses, and those that share such elements: their flows cannot be followed by the
// tuple alone.
func changingPaths(in *plan.TraceInput) []onpath.PathID {
	of := map[onpath.PathID][]string{} // deployments that change addresses
	for _, st := range in.Snapshot.States {
		if st.Acked == nil {
			continue
		}
		for _, p := range st.Acked.Datapath.Paths {
			of[p.ID] = append(of[p.ID], changing(st.Acked, p)...)
		}
	}
	var shared []string
	for _, list := range in.Flows {
		for _, e := range list {
			for _, d := range of[e.Path] {
				if !slices.Contains(shared, d) {
					shared = append(shared, d)
				}
			}
		}
	}
	var out []onpath.PathID
	for p, deployments := range of {
		if slices.ContainsFunc(deployments, func(d string) bool { return slices.Contains(shared, d) }) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// changing are the deployments of a path that have instances in a plan and may change
// addresses.
func changing(of *onpath.NodePlan, p onpath.Path) (list []string) {
	for _, i := range of.Instances {
		d := i.Tenant + "/" + i.Deployment
		if i.Spec.Packets != onpath.PacketsKeep && i.Spec.Packets != "" && slices.Contains(p.Elements, d) && !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}
