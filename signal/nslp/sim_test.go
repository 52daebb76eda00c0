package nslp

import (
	"bytes"
	"container/heap"
	"crypto/ed25519"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/signal/gist"
)

// simulation is a network in virtual time: a requester, nodes, a user who answers Queries
// by ICMP, and two routes between them.
type simulation struct {
	t      *testing.T
	random *rand.Rand
	now    time.Time
	queue  events
	number int
	nodes  map[netip.Addr]*simulated
	routes [2][]netip.Addr
	route  int
	loss   float64
	silent bool          // the user's machine sends no ICMP errors
	delay  time.Duration // of each datagram, beside what is random
	// timeout is a request's.
	timeout time.Duration
	// mute, if not nil, is a machine at the user's end that speaks GIST and nothing else.
	mute *gist.Endpoint
	// The requester; requesting is nil if none is at work.
	requesting *Requester
	// alter, if not nil, changes a request after it was signed.
	alter func(*Message)
	// payload, if not nil, changes a request's octets.
	payload func([]byte) []byte
	// session, if not zero, is that of the next requests.
	session gist.SessionID
	// connections are those that are open, by who opened them and with whom.
	connections map[[2]netip.Addr]*simConnection
	// blocks are what each node offers; they make answers long.
	blocks []string
	keys   map[string][]byte // of nodes, which the publisher knows
}

// simConnection is a TCP connection: what goes by it comes, in order, unless one end reboots.
type simConnection struct {
	boots [2]int
	last  [2]time.Time
}

// simulated is one node: its machines end with a reboot, its leases do not.
type simulated struct {
	s       *simulation
	address netip.Addr
	node    *Node
	held    []onpath.LocalLease
	boots   int
	// port is where it takes connections; 0: nowhere. shut: a firewall keeps them out.
	port uint16
	shut bool
}

// key signs what the node answers.
func (n *simulated) key() ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(HashOf(n.address.AsSlice()))
}

type simEvent struct {
	at     time.Time
	number int
	do     func()
}

type events []simEvent

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(simEvent)) }
func (e *events) Pop() (x any) {
	last := len(*e) - 1
	x = (*e)[last]
	*e = (*e)[:last]
	return x
}

var (
	simPublisher = netip.MustParseAddr("10.9.0.2")
	simUser      = netip.MustParseAddr("10.1.0.11")
	simKey       = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{9}, 32))
)

// bytesOf makes a source of random octets that repeats with the seed.
type bytesOf struct{ r *rand.Rand }

func (b bytesOf) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b.r.Uint32())
	}
	return len(p), nil
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{t: t, random: rand.New(rand.NewPCG(seed, 24)), now: now, nodes: map[netip.Addr]*simulated{}, timeout: 15 * time.Second,
		connections: map[[2]netip.Addr]*simConnection{}, keys: map[string][]byte{}}
	s.loss, s.silent = s.random.Float64()*0.3, s.random.IntN(3) == 0
	if s.random.IntN(5) == 0 { // as by one satellite, or two
		s.delay, s.timeout = []time.Duration{300 * time.Millisecond, time.Second}[s.random.IntN(2)], time.Minute
	}
	count := 1 + s.random.IntN(5)
	var all []netip.Addr
	for i := range count {
		a := netip.AddrFrom4([4]byte{10, 20, 0, byte(1 + i)})
		all = append(all, a)
		s.nodes[a] = &simulated{s: s, address: a, port: gist.Port}
		switch s.random.IntN(10) {
		case 0:
			s.nodes[a].port = 0
		case 1:
			s.nodes[a].shut = true
		}
		s.nodes[a].boot()
	}
	for i := range s.random.IntN(30) { // some answers are short, some long
		s.blocks = append(s.blocks, fmt.Sprintf("a-building-block/%d", i))
	}
	for i := range s.routes { // each crosses some of the nodes, in any order
		s.random.Shuffle(count, func(i, j int) { all[i], all[j] = all[j], all[i] })
		s.routes[i] = slices.Clone(all[:s.random.IntN(count+1)])
	}
	return s
}

func (n *simulated) boot() {
	n.boots++
	g, err := gist.New(gist.Config{Peer: n.address.String(), Random: bytesOf{n.s.random},
		Source: func(netip.Addr) netip.Addr { return n.address }, TCPPort: n.port})
	if err != nil {
		n.s.t.Fatal(err)
	}
	known := func(k []byte) bool { return bytes.Equal(k, simKey.Public().(ed25519.PublicKey)) }
	n.node = NewNode(n.s.now, Config{Name: n.address.String(), GIST: g, Random: bytesOf{n.s.random}, Known: known, Key: n.key()})
}

func (s *simulation) after(d time.Duration, do func()) {
	s.number++
	heap.Push(&s.queue, simEvent{s.now.Add(d), s.number, do})
}

// until runs the network to a time, or until done says so.
func (s *simulation) until(end time.Time, done func() bool) {
	for s.now.Before(end) && !done() {
		next := end
		if len(s.queue) > 0 && s.queue[0].at.Before(next) {
			next = s.queue[0].at
		}
		for _, n := range s.nodes {
			if d := n.node.Due(); !d.IsZero() && d.Before(next) {
				next = d
			}
		}
		if s.requesting != nil && s.requesting.Due().Before(next) {
			next = s.requesting.Due()
		}
		if next.After(s.now) {
			s.now = next
		}
		for len(s.queue) > 0 && !s.queue[0].at.After(s.now) {
			heap.Pop(&s.queue).(simEvent).do()
		}
		for _, a := range s.addresses() {
			n := s.nodes[a]
			n.out(n.node.Tick(s.now))
			n.held = slices.DeleteFunc(n.held, func(l onpath.LocalLease) bool { return !s.now.Before(l.Until) })
		}
		if s.requesting != nil {
			s.send(simPublisher, s.requesting.Tick(s.now))
		}
	}
}

func (s *simulation) addresses() (all []netip.Addr) {
	for a := range s.nodes {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// send puts datagrams on the network, where some are lost, doubled or late.
func (s *simulation) send(from netip.Addr, list []gist.Datagram) {
	for _, d := range list {
		if d.Stream {
			s.stream(from, d)
			continue
		}
		copies := 1
		if s.random.Float64() < s.loss {
			copies = 0
		} else if s.random.Float64() < s.loss {
			copies = 2
		}
		for range copies {
			s.after(s.delay+time.Duration(1+s.random.IntN(40))*time.Millisecond, func() { s.arrive(from, d) })
		}
	}
}

// dialled is the port of a connection at the end that opened it.
const dialled = 50_000

// stream sends by a connection.
func (s *simulation) stream(from netip.Addr, d gist.Datagram) {
	ends, at := [2]netip.Addr{from, d.To.Addr()}, 0
	p := gist.Packet{From: netip.AddrPortFrom(from, dialled), To: d.To, Payload: d.Payload, Stream: true}
	if !d.Dial {
		ends, at, p.From = [2]netip.Addr{d.To.Addr(), from}, 1, netip.AddrPortFrom(from, gist.Port)
	}
	c := s.connections[ends]
	if c != nil && s.now.Sub(c.last[0]) > gist.Hold && s.now.Sub(c.last[1]) > gist.Hold { // it was silent for too long
		c = nil
	}
	to := s.nodes[d.To.Addr()]
	if c == nil && d.Dial {
		if to == nil || to.shut {
			s.after(s.delay+20*time.Millisecond, func() { s.ended(from, d.To, true) })
			return
		}
		c = &simConnection{boots: s.booted(ends)}
		s.connections[ends] = c
	}
	if c == nil {
		return
	}
	wait := s.delay + time.Duration(1+s.random.IntN(40))*time.Millisecond
	if earliest := c.last[at].Sub(s.now); wait < earliest {
		wait = earliest
	}
	c.last[at] = s.now.Add(wait)
	s.after(wait, func() {
		switch {
		case s.connections[ends] != c:
		case c.boots != s.booted(ends):
			delete(s.connections, ends)
			s.ended(from, d.To, false)
		case to != nil:
			to.out(to.node.Receive(s.now, p))
		case s.requesting != nil:
			s.send(simPublisher, s.requesting.Receive(s.now, p))
		}
	})
}

func (s *simulation) booted(ends [2]netip.Addr) (boots [2]int) {
	for i, a := range ends {
		if n := s.nodes[a]; n != nil {
			boots[i] = n.boots
		}
	}
	return boots
}

// ended tells a machine that a connection is over.
func (s *simulation) ended(at netip.Addr, with netip.AddrPort, failed bool) {
	if n := s.nodes[at]; n != nil {
		n.out(n.node.Ended(s.now, with, failed))
	} else if s.requesting != nil {
		s.send(simPublisher, s.requesting.Ended(s.now, with, failed))
	}
}

func (s *simulation) arrive(from netip.Addr, d gist.Datagram) {
	p := gist.Packet{From: netip.AddrPortFrom(from, portOf(from)), To: d.To, Payload: d.Payload}
	if d.To.Addr() == simUser {
		s.query(from, p)
		return
	}
	if d.To.Addr() == simPublisher {
		if s.requesting != nil {
			s.send(simPublisher, s.requesting.Receive(s.now, p))
		}
		return
	}
	if n := s.nodes[d.To.Addr()]; n != nil {
		n.out(n.node.Receive(s.now, p))
	}
}

func portOf(a netip.Addr) uint16 {
	if a == simPublisher {
		return 40000
	}
	return gist.Port
}

// query goes along the route to the next node, or to the user.
func (s *simulation) query(from netip.Addr, p gist.Packet) {
	route := s.routes[s.route]
	at := slices.Index(route, from) + 1 // 0 for the publisher
	if at == 0 && from != simPublisher {
		return // a node that the route does not cross any more: its way is its own
	}
	if at < len(route) {
		n := s.nodes[route[at]]
		n.out(n.node.Receive(s.now, p))
		return
	}
	if s.mute != nil {
		for _, o := range s.mute.Receive(s.now, p) {
			if o.Send != nil {
				s.send(simUser, []gist.Datagram{*o.Send})
			}
		}
		return
	}
	if s.silent || s.random.Float64() < s.loss {
		return
	}
	s.after(s.delay+time.Millisecond, func() {
		if n := s.nodes[from]; n != nil {
			n.out(n.node.Unreachable(s.now, p))
		} else if s.requesting != nil {
			s.send(simPublisher, s.requesting.Unreachable(s.now, p))
		}
	})
}

func (n *simulated) out(list []Output) {
	for _, o := range list {
		if o.Send != nil {
			n.s.send(n.address, []gist.Datagram{*o.Send})
		} else if o.End != nil {
			n.s.t.Errorf("%s ends the connection with %s", n.address, o.End)
		} else if o.Ask.Refused == nil {
			ask, boot := o.Ask, n.boots
			n.s.after(time.Duration(n.s.random.IntN(300))*time.Millisecond, func() {
				e := n.decide(ask.Message)
				if n.boots == boot {
					n.out(n.node.Answer(n.s.now, ask, e))
				}
			})
		}
	}
}

func (n *simulated) ground() *Ground {
	return &Ground{
		Plan: &onpath.LeasePlan{Spec: onpath.LeasesSpec{Share: 1, Publishers: onpath.PublisherTenants},
			Slots:      []onpath.LeaseSlot{{Vport: 1, Path: 1}},
			Publishers: []onpath.Publisher{{Tenant: "p", Keys: []onpath.PublicKey{onpath.PublicKey(simKey.Public().(ed25519.PublicKey))}}}},
		Datapath: &onpath.DatapathConfig{}, Capacity: onpath.Resources{CPU: 4000, Memory: 1 << 30}, Leases: n.held, Node: n.address.String(),
		Blocks: n.s.blocks,
	}
}

// decide is what a node's agent does.
func (n *simulated) decide(m *Message) Entry {
	g := n.ground()
	at := g.Find("p", m.Module)
	switch m.Type {
	case Setup:
		l, r := g.Admit(n.s.now, m)
		if r != nil {
			return Entry{State: Refused, Reason: r.Reason}
		}
		if at < 0 {
			n.held = append(n.held, l)
			return Entry{State: Installed}
		}
		n.held[at] = l
		return Entry{State: Prolonged}
	case Remove:
		if at < 0 {
			return Entry{State: Absent}
		}
		n.held = slices.Delete(n.held, at, at+1)
		return Entry{State: Removed}
	}
	return g.Report(n.s.now, "p", func(*onpath.LocalLease) string { return "ready" })
}

// request sends one, and waits for its end.
func (s *simulation) request(m *Message) (*Message, error) {
	var nonce Nonce
	var session gist.SessionID
	source := bytesOf{s.random}
	_, _ = source.Read(nonce[:])
	_, _ = source.Read(session[:])
	if s.session != (gist.SessionID{}) {
		session = s.session
	}
	m.Flow = Flow{simPublisher, simUser}
	m.Sign(simKey, s.now, nonce)
	if s.alter != nil {
		s.alter(m)
	}
	g, err := gist.New(gist.Config{Peer: "requester", Random: source, Initiates: true, Source: func(netip.Addr) netip.Addr { return simPublisher }})
	if err != nil {
		return nil, err
	}
	r, out, err := NewRequester(s.now, g, gist.Key{Flow: gist.Toward(simPublisher, simUser), Session: session}, m, s.timeout)
	if err != nil {
		return nil, err
	}
	if s.payload != nil {
		r = &Requester{gist: g, key: gist.Key{Flow: r.key.Flow}, payload: s.payload(r.payload), nonce: r.nonce, until: r.until, wait: again}
		out = r.send(s.now)
	}
	s.requesting = r
	s.send(simPublisher, out)
	s.until(s.now.Add(s.timeout+5*time.Second), func() bool { return r.Response != nil || r.Err != nil })
	s.requesting = nil
	delete(s.connections, [2]netip.Addr{simPublisher, s.first()})
	if r.Response != nil {
		r.Prove(func(node string) (keys [][]byte) {
			if k := s.keys[node]; k != nil {
				keys = append(keys, k)
			}
			return keys
		}, func(node string, key []byte) { s.keys[node] = key })
		for _, e := range r.Response.Stack {
			if s.alter == nil && s.payload == nil && (e.State == Unproved || len(e.Signature) == 0) {
				s.t.Errorf("%s: %+v", m.Type, e)
			}
		}
	}
	return r.Response, r.Err
}

// first is the first node on the route.
func (s *simulation) first() (a netip.Addr) {
	if r := s.routes[s.route]; len(r) > 0 {
		a = r[0]
	}
	return a
}

// unreached is whether some node on the route cannot be reached by TCP, so that long answers
// come cut.
func (s *simulation) unreached() bool {
	return slices.ContainsFunc(s.routes[s.route], func(a netip.Addr) bool { return s.nodes[a].port == 0 || s.nodes[a].shut })
}

func simSetup() *Message {
	return &Message{Type: Setup, Module: "m", TTL: 5 * time.Minute, URL: "http://10.9.0.2/m.wasm", Hash: HashOf([]byte("m")),
		FilterTo: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/32")}}
}

// trouble is a run of requests while messages are lost, nodes reboot and the route changes.
func (s *simulation) trouble() {
	for range 1 + s.random.IntN(4) {
		if s.random.IntN(2) == 0 {
			s.after(time.Duration(s.random.IntN(4000))*time.Millisecond, func() { s.route = 1 - s.route })
		}
		if s.random.IntN(2) == 0 {
			all := s.addresses()
			n := s.nodes[all[s.random.IntN(len(all))]]
			s.after(time.Duration(s.random.IntN(3000))*time.Millisecond, n.boot)
		}
		m := simSetup()
		if s.random.IntN(3) == 0 {
			m = &Message{Type: Remove, Module: "m"}
		}
		_, _ = s.request(m) // it may fail
		s.check()
	}
}

// check: nothing is there twice.
func (s *simulation) check() {
	for a, n := range s.nodes {
		if len(n.held) > 1 {
			s.t.Errorf("node %s has %d leases of one module", a, len(n.held))
		}
	}
}

// settled: in a network without trouble a request reaches each node of the route, in its
// order, with the state that is right.
func (s *simulation) settled(m *Message, wants ...string) {
	s.t.Helper()
	s.until(s.now.Add(40*time.Second), func() bool { return false }) // what was known of routes is too old
	s.loss = 0
	r, err := s.request(m)
	route := s.routes[s.route]
	if len(route) == 0 {
		if err != ErrNobody {
			s.t.Errorf("without a node on the route: %v, %v", r, err)
		}
		return
	}
	cut := err == nil && r.Status == Shortened && s.unreached()
	if err != nil || r.Status != "" && !cut || len(r.Stack) != len(route) && !(cut && len(r.Stack) > 0) {
		s.t.Errorf("%s along %v: %+v, %v", m.Type, route, r, err)
		return
	}
	for i, e := range r.Stack {
		if e.Node != route[i].String() || !slices.Contains(wants, e.State) || e.RTT <= 0 || e.Address != route[i] {
			s.t.Errorf("%s along %v: entry %d is %+v, want %v", m.Type, route, i, e, wants)
		}
	}
}

func (s *simulation) run() {
	s.trouble()
	s.settled(simSetup(), Installed, Prolonged)
	for _, a := range s.routes[s.route] {
		if len(s.nodes[a].held) != 1 {
			s.t.Errorf("node %s on the route has %d leases", a, len(s.nodes[a].held))
		}
	}
	s.settled(&Message{Type: Probe}, Present)
	if s.random.IntN(2) == 0 {
		s.settled(&Message{Type: Remove, Module: "m"}, Removed)
	}
	s.until(s.now.Add(10*time.Minute), func() bool { return false })
	for a, n := range s.nodes {
		if len(n.held)+len(n.node.sessions)+len(n.node.nonces) > 0 || !n.node.GIST.Due().IsZero() {
			s.t.Errorf("node %s keeps %d leases, %d sessions, %d nonces", a, len(n.held), len(n.node.sessions), len(n.node.nonces))
		}
	}
}

// TestSimulation: 300 runs in virtual time; ONPATH_SOAK makes them 10,000, ONPATH_SEED
// repeats one.
func TestSimulation(t *testing.T) {
	runs, seed := 300, uint64(time.Now().UnixNano())
	if os.Getenv("ONPATH_SOAK") != "" {
		runs = 10_000
	}
	if v := os.Getenv("ONPATH_SEED"); v != "" {
		runs = 1
		if _, err := fmt.Sscan(v, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d runs, from seed %d on", runs, seed)
	for range runs {
		newSimulation(t, seed).run()
		if t.Failed() {
			t.Fatalf("repeat it with ONPATH_SEED=%d", seed)
		}
		seed++
	}
}
