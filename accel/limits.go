package accel

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/accel/vanish"
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
	leastConnections = 64 // where there are files for their sockets
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

// instanceFiles is how many files an instance has open beside its connections'.
const instanceFiles = 12

// limitsOf are those of a process with so many files, memory and instances. What else needs
// files (pipes that rest, headers that have not come, connections that wait) has a sixteenth
// and otherFiles.
func limitsOf(files uint64, memory int64, instances int) Limits {
	const otherFiles = 128 + maxHeaders
	files = min(files, mostConnections*connectionFiles)
	room := int(files) - int(files)/16 - otherFiles - instances*instanceFiles
	n := min(room/connectionFiles, int(min(memory/connectionMemory, mostConnections)))
	return Limits{Connections: max(n, leastConnections)}
}

// openable is how many files the process may have open now.
func openable() uint64 {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 1024
	}
	return files.Cur
}

// ownFiles is the folder of the files that the process has open. It is held open: there may be
// no file to open it when it is needed.
var ownFiles = sync.OnceValues(func() (*os.File, error) { return os.Open("/proc/self/fd") })

var counting sync.Mutex // has one read ownFiles at a time

// openNow is how many files the process has open.
func openNow() int {
	counting.Lock()
	defer counting.Unlock()
	f, err := ownFiles()
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return 0
	}
	names, _ := f.Readdirnames(-1)
	return len(names)
}

// orDefault fills in what is zero.
func (l Limits) orDefault() Limits {
	if l.PerTenant == 0 {
		l.PerTenant = l.Connections - l.Connections/3
	}
	if l.Opening == 0 {
		l.Opening = min(defaultOpening, max(l.Connections/4, 1))
	}
	return l
}

// A relay is full from fullAt percent of a limit on, until it has openAt. What comes before
// its node hears of it finds the rest: whom the kernel has answered, the relay has to serve. From
// scarceAt percent of all on, where its node does not hear, the kernel answers those alone that
// have got a place before; whoever holds much gets none.
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
	// Vanished counts connections that the relay has left to the translator, Stayed the others by the reason.
	Vanished int64                 `json:"vanished"`
	Stayed   map[vanish.Stay]int64 `json:"stayed,omitempty"`
	Tenants  map[string]TenantStats
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
	pipes                  pipes
	opened, refused, reset atomic.Int64
	vanished               atomic.Int64

	mu        sync.Mutex
	asked     Limits // zero: by what the process may take
	limits    Limits
	files     uint64    // by which they are
	evaluated time.Time // when they were set
	instances int
	short     bool // they are what was open when something was lacking
	all       int
	waiting   [2]int               // connections that have no place yet, by whose they are
	full      onpath.RelayFullness // of all
	scarce    bool
	tenants   map[string]*tenantUse
	prefixes  map[netip.Prefix]int // connections
	stayed    map[vanish.Stay]int64
	changed   chan struct{} // closed and replaced when what is full changes
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
	c := &counters{asked: l, tenants: map[string]*tenantUse{}, prefixes: map[netip.Prefix]int{},
		stayed: map[vanish.Stay]int64{}, changed: make(chan struct{})}
	c.setLimits()
	return c
}

const (
	spareFiles = 4 // for the agent that asks
	mostHeld   = 4 // connections that may wait at each listener, however few files there are
	ownSockets = 2 // a connection's: it may go without pipes
)

// setLimits sets the limits by what the process may take now. However few files it may have,
// the sockets of all connections find one each. Callers hold mu.
func (c *counters) setLimits() {
	c.files, c.evaluated, c.short = openable(), now(), false
	others := max(openNow()-c.all*ownSockets-c.pipes.files(), 0)
	room := int(min(c.files, mostConnections*connectionFiles)) - others - spareFiles - 2*c.mostAtOnce()
	l := c.asked
	if l.Connections == 0 {
		l = limitsOf(c.files, MemoryBound(), c.instances)
		l.Connections = max(min(l.Connections, room/ownSockets), 1)
		l.PerTenant, l.Opening = c.asked.PerTenant, c.asked.Opening
	}
	c.limits = l.orDefault()
	c.pipes.bound(room - c.limits.Connections*ownSockets)
}

// mostAtOnce is how many connections may wait for their header at a time, and how many for a place.
// A header comes with the SYN or right behind the handshake: one connection more ends the wait of
// the one that has waited longest.
func (c *counters) mostAtOnce() int { return int(min(max(c.files/16, mostHeld), maxHeaders)) }

func (c *counters) headersAtOnce() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mostAtOnce()
}

// shortFor is after how long limits are tried again that were less than what was open.
const shortFor = 10 * time.Second

// renew has the limits follow those of the process. Callers hold mu.
func (c *counters) renew() {
	if openable() != c.files || c.short && now().Sub(c.evaluated) > shortFor {
		c.setLimits()
	}
}

// instance counts one that begins or ends.
func (c *counters) instance(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.instances += n; !c.short {
		c.setLimits()
	}
}

// shortOf has the limits be less than what is open, for a while or until a fifth of that has ended:
// somebody else has what they counted on. It reports whether that is new.
func (c *counters) shortOf() (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if news = !c.short; !news && c.all >= c.limits.Connections {
		return false
	}
	c.short, c.evaluated = true, now()
	l := c.asked
	l.Connections, l.PerTenant = max(c.all-c.all/8-1, 1), 0
	c.limits = l.orDefault()
	c.evaluate(nil)
	return news
}

// take takes a place for a client's connection, of which the last are for those that hold few: a
// prefix may have as many of them as are left free, and a tenant none that has its limit. Whom the
// kernel has answered already waits for one, and takes it by the same rule.
func (c *counters) take(tenant string, client netip.Addr) (*use, error) {
	return c.place(tenant, client, clients)
}

// takeLast takes any place, for a leg of another relay: its client holds places there already.
func (c *counters) takeLast(tenant string, client netip.Addr) (*use, error) {
	return c.place(tenant, client, relayed)
}

// whose a connection is.
type whose int

const (
	clients whose = iota
	relayed
)

func (c *counters) place(tenant string, client netip.Addr, who whose) (*use, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renew()
	t := c.tenants[tenant]
	if t == nil {
		t = &tenantUse{}
		c.tenants[tenant] = t
	}
	of := clientPrefix(client)
	free, held := c.limits.Connections-c.all, c.prefixes[of]
	c.evaluate(t)
	few := who == clients && c.all*100 >= c.limits.Connections*scarceAt
	switch {
	case free <= 0:
		return nil, fmt.Errorf("the relay holds %d connections, as many as it may", c.all)
	case few && t.connections >= c.limits.PerTenant:
		return nil, fmt.Errorf("tenant %s holds %d connections, as many as one may", tenant, t.connections)
	case few && held >= free:
		return nil, fmt.Errorf("clients of %s hold %d connections, and %d are left free", of, held, free)
	}
	c.all++
	t.connections++
	c.prefixes[of]++
	c.evaluate(t)
	return &use{counters: c, tenant: t, prefix: of}, nil
}

// room is how many places are free for new connections, and how many connections wait for one.
func (c *counters) room(who whose) (free, waiting int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.renew(); who == relayed {
		return c.limits.Connections - c.all, c.waiting[who]
	}
	return (c.limits.Connections*scarceAt+99)/100 - c.all, c.waiting[who]
}

// spare is how many places are free in all, and how many connections may wait at each instance's
// listener for one.
func (c *counters) spare() (free, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limits.Connections - c.all, max(c.mostAtOnce()/max(c.instances, 1), mostHeld)
}

func (c *counters) wait(who whose, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[who] += n
}

// opening is how many legs may have been begun by SYNs, and whether places are scarce.
func (c *counters) opening() (most int, scarce bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limits.Opening, c.scarce
}

// scarcity is whether a SYN needs a place, and a channel that is closed when that may have changed.
func (c *counters) scarcity() (bool, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.scarce, c.changed
}

func (c *counters) stay(why vanish.Stay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stayed[why]++
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

// evaluate sets what is full after a change; t may be nil. Callers hold mu.
func (c *counters) evaluate(t *tenantUse) {
	all := fullness(c.full, onpath.RelayFullConnections, c.all, c.limits.Connections)
	if all == "" && c.short {
		c.setLimits()
	}
	scarce := c.all*100 >= c.limits.Connections*scarceAt || c.scarce && all != ""
	changed := all != c.full || scarce != c.scarce
	c.full, c.scarce = all, scarce
	if t != nil {
		tenant := fullness(t.full, onpath.RelayFullTenant, t.connections, c.limits.PerTenant)
		changed = changed || tenant != t.full
		t.full = tenant
	}
	if changed {
		c.tell()
	}
}

// tell wakes who waits for changes. Callers hold mu.
func (c *counters) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *counters) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tell()
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
	s := Stats{Opened: c.opened.Load(), Refused: c.refused.Load(), Reset: c.reset.Load(), Vanished: c.vanished.Load(),
		Tenants: map[string]TenantStats{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Stayed = maps.Clone(c.stayed)
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
