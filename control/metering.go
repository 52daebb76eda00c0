package control

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/pool"
)

// metering asks nodes what instances have used and has it billed: each hour, and when an
// instance is gone.
type metering struct {
	mu   sync.Mutex
	gone map[string]time.Time // nodes of which an instance is gone, and when that was seen first
	// billed are instances that are gone and billed, by node: it may forget them.
	billed map[string][]string
}

// settleGone is how long a node has after an instance is gone, so that what goes together
// is asked for at once.
const settleGone = time.Second

// note sees in a report that instances are gone. Reports say so for some seconds.
func (m *metering) note(r *onpath.NodeReport, now time.Time) {
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
func (m *metering) due(now time.Time) (nodes []string) {
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

// meter bills use until ctx ends.
func (c *Controller) meter(ctx context.Context) {
	tick := time.NewTicker(settleGone)
	defer tick.Stop()
	hour := c.o.Clock().Truncate(time.Hour)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := c.o.Clock()
		nodes := c.metering.due(now)
		if h := now.Truncate(time.Hour); h.After(hour) {
			hour, nodes = h, c.connectedNodes()
		}
		billNodes(ctx, c, nodes)
	}
}

// billAtOnce is how many nodes are asked at the same time: one that does not answer holds up
// few others.
const billAtOnce = 32

// billNodes bills the use of several nodes.
func billNodes(ctx context.Context, c *Controller, nodes []string) {
	var asked sync.WaitGroup
	slots := make(chan struct{}, billAtOnce)
	for _, n := range nodes {
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			if err := c.billNode(ctx, n); err != nil && ctx.Err() == nil && onpath.CodeOf(err) != onpath.CodeUnsupported {
				c.log.Warn("what instances used is not billed; it will be with the next hour", "node", n, "err", err)
			}
		})
	}
	asked.Wait()
}

func (c *Controller) connectedNodes() (nodes []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, st := range c.nodes {
		if st.connected {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// billNode bills what a node's instances have used since they were billed last.
func (c *Controller) billNode(ctx context.Context, node string) error {
	m := &c.metering
	m.mu.Lock()
	forget := m.billed[node]
	m.mu.Unlock()
	list, err := c.askMeters(ctx, node, forget)
	if err != nil {
		return err
	}
	if err := c.pool.Forget(ctx, node, forget); err != nil {
		return err
	}
	billed, err := c.pool.Bill(ctx, node, list, c.placed(node, list))
	c.mu.Lock()
	c.mirror.settle(node, list)
	c.mu.Unlock()
	m.mu.Lock()
	m.billed[node] = billed
	m.mu.Unlock()
	return err
}

// placed are those of a node's meters that are of instances which the server placed there, by
// UID.
func (c *Controller) placed(node string, list []onpath.Meter) map[string]pool.Placed {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]pool.Placed{}
	for i := range list {
		m := &list[i]
		in, _ := c.mirror.objects[onpath.Key{Kind: onpath.KindInstance, Tenant: m.Tenant, Name: m.Instance}].(*onpath.Instance)
		if in == nil || in.Metadata.UID != m.UID {
			in = c.mirror.left[m.UID]
		}
		if in == nil || in.Spec.Node != node {
			continue
		}
		x := pool.Placed{Node: node, Tenant: in.Metadata.Tenant, Instance: in.Metadata.Name,
			Reservation: m.Reservation, Created: in.Metadata.Created}
		if d := c.mirror.deployments[ofDeployment(in)]; d != nil { // else it went before its instance, and no amount depends on it
			_, x.Reservation = d.Spec.Reservation.Resolve(x.Tenant)
		}
		out[m.UID] = x
	}
	return out
}

func (c *Controller) askMeters(ctx context.Context, node string, forget []string) (list []onpath.Meter, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := c.o.Hub.Call(ctx, node, onpath.OpMeters, onpath.MeterRequest{Billed: forget})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	err = json.NewDecoder(s).Decode(&list)
	return list, err
}
