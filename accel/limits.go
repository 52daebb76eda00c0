package accel

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// Limits bound what a relay holds.
type Limits struct {
	Connections int // of all tenants; a busy one takes up to connectionFiles
	PerTenant   int // connections of one tenant, which has more only while others leave them free
	Opening     int // legs begun by a SYN whose handshake has not ended
}

const (
	connectionFiles  = 6         // two sockets, and a pipe for each direction
	connectionMemory = 256 << 10 // bytes
	defaultOpening   = 256
	leastConnections = 16
	mostConnections  = 1 << 20
)

// MemoryBound is how much memory the relays' process may take, bytes: half the machine's.
func MemoryBound() int64 {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return 1 << 30
	}
	return int64(s.Totalram) * int64(s.Unit) / 2
}

// limitsOf are those of a process with so many files and so much memory. What else needs files
// (instances, pipes that rest, headers that have not come) has a sixteenth and otherFiles.
func limitsOf(files uint64, memory int64) Limits {
	const otherFiles = 128 + maxHeaders
	files = min(files, mostConnections*connectionFiles)
	room := int(files) - int(files)/16 - otherFiles
	n := min(room/connectionFiles, int(min(memory/connectionMemory, mostConnections)))
	return Limits{Connections: max(n, leastConnections)}
}

// orDefault fills in what is zero, by what the process may take.
func (l Limits) orDefault() Limits {
	if l.Connections == 0 {
		var files unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
			files.Cur = 1024
		}
		l.Connections = limitsOf(files.Cur, MemoryBound()).Connections
	}
	if l.PerTenant == 0 {
		l.PerTenant = l.Connections - l.Connections/3
	}
	if l.Opening == 0 {
		l.Opening = min(defaultOpening, l.Connections/4)
	}
	return l
}

// A relay is full from fullAt percent of a limit on, until it has openAt. What comes before
// its node hears of it finds the rest: whom the kernel has answered, the relay has to serve. Only
// from scarceAt percent of all on, where its node does not hear, those that hold much are refused.
const (
	fullAt   = 90
	openAt   = 80
	scarceAt = 95
)

// clientPrefix is whose clients share: an IPv4 /24, an IPv6 /48.
func clientPrefix(client netip.Addr) netip.Prefix {
	bits := 48
	if client.Is4() {
		bits = 24
	}
	p, _ := client.Prefix(bits) // of a zero address: none, which shares too
	return p
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
	Most        int   `json:"most"` // connections that it may have
	// Full: it should get no new connections.
	Full onpath.RelayFullness `json:"full,omitempty"`
}

type counters struct {
	limits                 Limits
	opened, refused, reset atomic.Int64

	mu       sync.Mutex
	all      int
	full     onpath.RelayFullness // of all
	tenants  map[string]*tenantUse
	prefixes map[netip.Prefix]int // connections
	changed  chan struct{}        // closed and replaced when what is full changes
}

// tenantUse's fields are guarded by counters.mu but for the bytes.
type tenantUse struct {
	connections int
	full        onpath.RelayFullness
	there, back atomic.Int64
}

// use is one connection's place under the limits.
type use struct {
	counters *counters
	tenant   *tenantUse
	prefix   netip.Prefix
	once     sync.Once
}

func newCounters(l Limits) *counters {
	return &counters{limits: l.orDefault(), tenants: map[string]*tenantUse{}, prefixes: map[netip.Prefix]int{},
		changed: make(chan struct{})}
}

// take takes a place for a connection, of which the last are for those that hold few: a prefix
// may have as many of them as are left free, and a tenant none that has its limit.
func (c *counters) take(tenant string, client netip.Addr) (*use, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tenants[tenant]
	if t == nil {
		t = &tenantUse{}
		c.tenants[tenant] = t
	}
	of := clientPrefix(client)
	free, held := c.limits.Connections-c.all, c.prefixes[of]
	scarce := c.all*100 >= c.limits.Connections*scarceAt
	switch {
	case free <= 0:
		return nil, fmt.Errorf("the relay holds %d connections, as many as it may", c.all)
	case scarce && t.connections >= c.limits.PerTenant:
		return nil, fmt.Errorf("tenant %s holds %d connections, as many as one may", tenant, t.connections)
	case scarce && held >= free:
		return nil, fmt.Errorf("clients of %s hold %d connections, and %d are left free", of, held, free)
	}
	c.all++
	t.connections++
	c.prefixes[of]++
	c.evaluate(t)
	return &use{counters: c, tenant: t, prefix: of}, nil
}

func (u *use) release() {
	u.once.Do(func() {
		c := u.counters
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all--
		u.tenant.connections--
		if c.prefixes[u.prefix]--; c.prefixes[u.prefix] == 0 {
			delete(c.prefixes, u.prefix)
		}
		c.evaluate(u.tenant)
	})
}

// evaluate sets what is full after a change. Callers hold mu.
func (c *counters) evaluate(t *tenantUse) {
	all := fullness(c.full, onpath.RelayFullConnections, c.all, c.limits.Connections)
	tenant := fullness(t.full, onpath.RelayFullTenant, t.connections, c.limits.PerTenant)
	if all != c.full || tenant != t.full {
		c.full, t.full = all, tenant
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

func fullness(was, why onpath.RelayFullness, used, most int) onpath.RelayFullness {
	limit := fullAt
	if was != "" {
		limit = openAt
	}
	if used*100 >= most*limit {
		return why
	}
	return ""
}

// fullFor is whether a tenant's instances should get no new connections, and a channel that is
// closed when that may have changed.
func (c *counters) fullFor(tenant string) (onpath.RelayFullness, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	full := c.full
	if t := c.tenants[tenant]; t != nil && full == "" {
		full = t.full
	}
	return full, c.changed
}

// Stats returns what the relay has done so far.
func (r *Relay) Stats() Stats {
	c := r.count
	s := Stats{Opened: c.opened.Load(), Refused: c.refused.Load(), Reset: c.reset.Load(), Tenants: map[string]TenantStats{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, t := range c.tenants {
		full := c.full
		if full == "" {
			full = t.full
		}
		s.Tenants[name] = TenantStats{Connections: t.connections, ToOrigin: t.there.Load(), ToClient: t.back.Load(),
			Most: c.limits.PerTenant, Full: full}
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
