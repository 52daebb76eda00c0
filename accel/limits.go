package accel

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Limits bound what a relay holds.
type Limits struct {
	Connections int // of all tenants; a busy one takes up to six files
	PerTenant   int // connections of one tenant
	Opening     int // legs begun by a SYN whose handshake has not ended
}

// Defaults: six files a connection stay below a limit of 20,000 files.
const (
	defaultConnections = 3000
	defaultPerTenant   = 2000
	defaultOpening     = 256
)

func (l Limits) orDefault() Limits {
	if l.Connections == 0 {
		l.Connections = defaultConnections
	}
	if l.PerTenant == 0 {
		l.PerTenant = min(defaultPerTenant, l.Connections)
	}
	if l.Opening == 0 {
		l.Opening = defaultOpening
	}
	return l
}

// Stats is what a relay has done.
type Stats struct {
	Opened  int64 `json:"opened"`  // connections relayed, those that have ended included
	Refused int64 `json:"refused"` // connections refused: no route, not signed, over a limit, no next leg
	Reset   int64 `json:"reset"`   // connections that ended by an error
	Tenants map[string]TenantStats
}

// TenantStats are one tenant's; bytes are those of TCP's payload.
type TenantStats struct {
	Connections int   `json:"connections"` // open now
	ToOrigin    int64 `json:"toOrigin"`
	ToClient    int64 `json:"toClient"`
}

type counters struct {
	limits                 Limits
	opened, refused, reset atomic.Int64

	mu      sync.Mutex
	all     int
	tenants map[string]*tenantUse
}

type tenantUse struct {
	connections int // guarded by counters.mu
	there, back atomic.Int64
}

// use is one connection's place under the limits.
type use struct {
	counters *counters
	tenant   *tenantUse
	once     sync.Once
}

func (c *counters) take(tenant string) (*use, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tenants[tenant]
	if t == nil {
		if c.tenants == nil {
			c.tenants = map[string]*tenantUse{}
		}
		t = &tenantUse{}
		c.tenants[tenant] = t
	}
	switch {
	case c.all >= c.limits.Connections:
		return nil, fmt.Errorf("the relay holds %d connections, as many as it may", c.all)
	case t.connections >= c.limits.PerTenant:
		return nil, fmt.Errorf("tenant %s holds %d connections, as many as one may", tenant, t.connections)
	}
	c.all++
	t.connections++
	return &use{counters: c, tenant: t}, nil
}

func (u *use) release() {
	u.once.Do(func() {
		u.counters.mu.Lock()
		defer u.counters.mu.Unlock()
		u.counters.all--
		u.tenant.connections--
	})
}

// Stats returns what the relay has done so far.
func (r *Relay) Stats() Stats {
	c := r.count
	s := Stats{Opened: c.opened.Load(), Refused: c.refused.Load(), Reset: c.reset.Load(), Tenants: map[string]TenantStats{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, t := range c.tenants {
		s.Tenants[name] = TenantStats{Connections: t.connections, ToOrigin: t.there.Load(), ToClient: t.back.Load()}
	}
	return s
}

// nonces remembers headers, so that a copied SYN opens no second leg. It keeps the last
// keptNonces to twice as many.
type nonces struct {
	mu       sync.Mutex
	new, old map[[nonceSize]byte]struct{}
}

const keptNonces = 1 << 16

func (n *nonces) add(x [nonceSize]byte) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, new := n.new[x]
	_, old := n.old[x]
	if new || old {
		return false
	}
	if n.new == nil || len(n.new) >= keptNonces {
		n.new, n.old = map[[nonceSize]byte]struct{}{}, n.new
	}
	n.new[x] = struct{}{}
	return true
}
