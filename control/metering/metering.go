// Package metering asks nodes what instances have used, and has it billed.
package metering

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/pool"
)

// Hub reaches the nodes.
type Hub interface {
	Call(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error)
}

// Bills is who bills what was used.
type Bills interface {
	// Bill bills what a node's instances have used, and says which are billed to their end.
	Bill(ctx context.Context, node string, list []onpath.Meter, placed map[string]pool.Placed) (ended []string, err error)
	// Forget drops what is kept of instances that a node is told to forget.
	Forget(ctx context.Context, node string, ended []string) error
}

// Options of a Metering.
type Options struct {
	Hub   Hub
	Bills Bills
	Clock onpath.Clock
	Log   *slog.Logger
}

// Metering asks nodes what instances have used and has it billed: each hour, and when an
// instance is gone. Make one with New.
type Metering struct {
	o Options

	mu   sync.Mutex
	gone map[string]time.Time // nodes of which an instance is gone, and when that was seen first
	// billed are instances that are gone and billed, by node: it may forget them.
	billed      map[string][]string
	connected   []string                    // nodes
	instances   map[string]*onpath.Instance // by UID
	left        map[string]*onpath.Instance // that were deleted, until their node meters them no more
	deployments map[onpath.Key]*onpath.Deployment
}

// New makes a Metering that knows nothing yet.
func New(o Options) *Metering {
	return &Metering{o: o, gone: map[string]time.Time{}, billed: map[string][]string{}, left: map[string]*onpath.Instance{}}
}

// Note takes up how things stand: the objects, and which nodes are connected.
func (m *Metering) Note(objects map[onpath.Key]onpath.Object, connected []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.instances
	m.connected, m.instances, m.deployments = connected, map[string]*onpath.Instance{}, map[onpath.Key]*onpath.Deployment{}
	nodes := map[string]bool{}
	for k, o := range objects {
		switch o := o.(type) {
		case *onpath.Instance:
			m.instances[o.Metadata.UID] = o
		case *onpath.Deployment:
			m.deployments[k] = o
		case *onpath.Node:
			nodes[k.Name] = true
		}
	}
	for uid, i := range before {
		if m.instances[uid] == nil {
			m.left[uid] = i
		}
	}
	maps.DeleteFunc(m.left, func(_ string, i *onpath.Instance) bool { return !nodes[i.Spec.Node] })
	maps.DeleteFunc(m.billed, func(node string, _ []string) bool { return !nodes[node] })
}

// settleGone is how long a node has after an instance is gone, so that what goes together
// is asked for at once.
const settleGone = time.Second

// Reported sees in a report that instances are gone. Reports say so for some seconds.
func (m *Metering) Reported(r *onpath.NodeReport, now time.Time) {
	for i := range r.Instances {
		if r.Instances[i].State == onpath.InstanceStopped {
			m.mu.Lock()
			if _, known := m.gone[r.Node]; !known {
				m.gone[r.Node] = now
			}
			m.mu.Unlock()
			return
		}
	}
}

// due are the nodes of which an instance went a while ago.
func (m *Metering) due(now time.Time) (nodes []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, at := range m.gone {
		if now.Sub(at) >= settleGone {
			nodes = append(nodes, n)
			delete(m.gone, n)
		}
	}
	return nodes
}

// Run bills use until ctx ends.
func (m *Metering) Run(ctx context.Context) {
	tick := time.NewTicker(settleGone)
	defer tick.Stop()
	hour := m.o.Clock().Truncate(time.Hour)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := m.o.Clock()
		nodes := m.due(now)
		if h := now.Truncate(time.Hour); h.After(hour) {
			hour, nodes = h, m.connectedNodes()
		}
		m.billNodes(ctx, nodes)
	}
}

// billAtOnce is how many nodes are asked at the same time: one that does not answer holds up
// few others.
const billAtOnce = 32

// billNodes bills the use of several nodes.
func (m *Metering) billNodes(ctx context.Context, nodes []string) {
	var asked sync.WaitGroup
	slots := make(chan struct{}, billAtOnce)
	for _, n := range nodes {
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			if err := m.billNode(ctx, n); err != nil && ctx.Err() == nil && onpath.CodeOf(err) != onpath.CodeUnsupported {
				m.o.Log.Warn("what instances used is not billed; it will be with the next hour", "node", n, "err", err)
			}
		})
	}
	asked.Wait()
}

func (m *Metering) connectedNodes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.connected
}

// billNode bills what a node's instances have used since they were billed last.
func (m *Metering) billNode(ctx context.Context, node string) error {
	m.mu.Lock()
	forget := m.billed[node]
	m.mu.Unlock()
	list, err := m.askMeters(ctx, node, forget)
	if err != nil {
		return err
	}
	if err := m.o.Bills.Forget(ctx, node, forget); err != nil {
		return err
	}
	billed, err := m.o.Bills.Bill(ctx, node, list, m.placed(node, list))
	m.mu.Lock()
	m.dropLeft(node, list)
	m.billed[node] = billed
	m.mu.Unlock()
	return err
}

// placed are those of a node's meters that are of instances which the server placed there, by
// UID.
func (m *Metering) placed(node string, list []onpath.Meter) map[string]pool.Placed {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]pool.Placed{}
	for i := range list {
		x := &list[i]
		in := m.instances[x.UID]
		if in == nil {
			in = m.left[x.UID]
		}
		if in == nil || in.Spec.Node != node {
			continue
		}
		p := pool.Placed{Node: node, Tenant: in.Metadata.Tenant, Instance: in.Metadata.Name,
			Reservation: x.Reservation, Created: in.Metadata.Created}
		d := m.deployments[onpath.Key{Kind: onpath.KindDeployment, Tenant: in.Metadata.Tenant, Name: in.Spec.Deployment}]
		if d != nil { // else it went before its instance, and no amount depends on it
			_, p.Reservation = d.Spec.Reservation.Resolve(p.Tenant)
		}
		out[x.UID] = p
	}
	return out
}

// dropLeft drops what has left a node and is not among its meters: it is billed, or never ran.
// Callers hold mu.
func (m *Metering) dropLeft(node string, meters []onpath.Meter) {
	metered := map[string]bool{}
	for i := range meters {
		metered[meters[i].UID] = true
	}
	maps.DeleteFunc(m.left, func(uid string, i *onpath.Instance) bool { return i.Spec.Node == node && !metered[uid] })
}

func (m *Metering) askMeters(ctx context.Context, node string, forget []string) (list []onpath.Meter, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := m.o.Hub.Call(ctx, node, onpath.OpMeters, onpath.MeterRequest{Billed: forget})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	err = json.NewDecoder(io.LimitReader(s, onpath.MaxNodeReply)).Decode(&list)
	return list, err
}
