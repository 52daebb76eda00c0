package control

import (
	"log/slog"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/events"
	"github.com/onpath/onpath/control/pool"
	"github.com/onpath/onpath/control/scaling"
	"github.com/onpath/onpath/plan"
)

// core is what the Controller plans from. It reads no store, calls no node and has no lock: all
// callers hold the Controller's mu.
type core struct {
	clock    onpath.Clock
	settings plan.Settings
	secrets  func() [][]byte // the newest is the settings'
	log      *slog.Logger
	events   *events.Log
	scaling  *scaling.Scaling
	pool     *pool.Pool

	mirror  *mirror
	nodes   map[string]*session
	ids     idStock
	asides  asides
	started time.Time
	held    bool                         // nothing is planned yet: nodes are awaited
	writing bool                         // decisions are on their way to the store
	missing map[onpath.Key]onpath.Object // to be created if absent
}

// snapshot is what is planned from, until mu is let go.
func (c *core) snapshot() *plan.Snapshot {
	c.settings.Secret = c.secrets()[0]
	s := &plan.Snapshot{
		Now: c.clock().UTC(), Started: c.started, Objects: c.mirror.objects,
		States: make(map[string]*plan.NodeState, len(c.nodes)), IDs: c.ids.left(), Settings: c.settings,
		Wanted:       scaling.Numbers(c.mirror.chains, c.mirror.deployments),
		Filling:      c.scaling.Filling(),
		Reservations: c.pool.Running(), Promised: c.pool.Promised(),
	}
	for n, st := range c.nodes {
		s.States[n] = &st.state
	}
	withoutWaiting(s, waitingNodes(c.mirror, c.nodes))
	return s
}

// push sends the plans to the nodes that are connected. Others get theirs when
// they come.
func (c *core) push(hub Hub, r *plan.Result) {
	for name, p := range r.Plans {
		st := c.nodes[name]
		if !st.connected {
			continue
		}
		st.state.Sent = append(st.state.Sent, p)
		if n := len(st.state.Sent); n > maxUnderWay {
			st.state.Sent = st.state.Sent[n-maxUnderWay:]
		}
		st.pushed = p.Generation
		hub.Push(name, p)
		c.log.Debug("plan pushed", "node", name, "generation", p.Generation)
	}
}

// maxUnderWay bounds the plans that a node has been sent and not acknowledged;
// of more, the oldest have long been overtaken.
const maxUnderWay = 64
