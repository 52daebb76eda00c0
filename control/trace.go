package control

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// traceTimeout bounds how long a node may take to answer, which may have been asked just before.
const traceTimeout = 4 * time.Second

// Trace finds the way of a packet and of its answer, from the plans in force
// and the nodes' flow entries. Nodes that do not answer are named in a warning.
func (c *Controller) Trace(ctx context.Context, r onpath.TraceRequest) (*onpath.Trace, error) {
	in := plan.TraceInput{Snapshot: c.copy(), Request: r}
	if err := checkGateway(in.Snapshot, r.Gateway); err != nil {
		return nil, err
	}
	in.Silent = c.silent(in.Snapshot)
	c.ask(ctx, &in, onpath.FlowFilter{Tuple: &r.Tuple})
	for _, p := range changingPaths(&in) {
		c.ask(ctx, &in, onpath.FlowFilter{Path: p})
	}
	return plan.Trace(in), ctx.Err()
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

// copy is a snapshot that stays as it is.
func (c *Controller) copy() *plan.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.snapshot()
	s.Objects = maps.Clone(s.Objects)
	for n, st := range s.States {
		copied := *st
		s.States[n] = &copied
	}
	return s
}

// silent are the nodes that have no session.
func (c *Controller) silent(s *plan.Snapshot) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for k := range s.Objects {
		if k.Kind != onpath.KindNode {
			continue
		}
		if st := c.nodes[k.Name]; st == nil || !st.connected {
			out[k.Name] = "it is not connected"
		}
	}
	return out
}

// Counters are what a node has counted: it is asked once a second at most for all who want to
// know.
func (c *Controller) Counters(ctx context.Context, node string) (*onpath.Counters, error) {
	seen, err := c.looks.Ask(ctx, node, nil)
	return seen.Counters, err
}

// ask adds what the nodes say.
func (c *Controller) ask(ctx context.Context, in *plan.TraceInput, f onpath.FlowFilter) {
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
// addresses: their flows cannot be followed by the tuple alone.
func changingPaths(in *plan.TraceInput) []onpath.PathID {
	var out []onpath.PathID
	for _, list := range in.Flows {
		for _, e := range list {
			if e.Path != 0 && !slices.Contains(out, e.Path) && changes(in.Snapshot, e.Path) {
				out = append(out, e.Path)
			}
		}
	}
	slices.Sort(out)
	return out
}

func changes(s *plan.Snapshot, p onpath.PathID) bool {
	for _, st := range s.States {
		if st.Acked == nil {
			continue
		}
		for _, path := range st.Acked.Datapath.Paths {
			if path.ID != p {
				continue
			}
			for _, i := range st.Acked.Instances {
				if slices.Contains(path.Elements, i.Tenant+"/"+i.Deployment) && i.Spec.Packets != onpath.PacketsKeep && i.Spec.Packets != "" {
					return true
				}
			}
		}
	}
	return false
}
