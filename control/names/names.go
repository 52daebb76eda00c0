// Package names keeps where the names of services lead, and how far clients are from cloudlets.
package names

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/near"
)

// Hub reaches the nodes.
type Hub interface {
	Call(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error)
}

// Names is what a name server asks. Make one with New.
type Names struct {
	hub       Hub
	clock     onpath.Clock
	directory atomic.Pointer[near.Directory]
	asked     chan netip.Addr // clients to whom round trips are to be measured

	mu         sync.Mutex
	last       lastNoted           // what the directory was made of
	gateways   map[string][]string // that are connected, by cloudlet
	young, old map[netip.Prefix]clientRTTs
}

// lastNoted is what a directory was made of.
type lastNoted struct {
	objects   map[onpath.Object]bool // services, and tenants with zones
	cloudlets near.Map
}

// clientRTTs are round trips between the clients of a network and cloudlets; empty: nobody
// answered there.
type clientRTTs struct {
	first time.Time // when one of them asked first
	at    time.Time // zero: not measured yet
	rtt   map[string]time.Duration
}

// known reports whether the round trips were measured lately.
func (x clientRTTs) known(now time.Time) bool { return !x.at.IsZero() && now.Sub(x.at) < clientsLast }

// Bounds of measuring clients: how many networks are kept, of each of two generations; for
// how long; how long clients ask before they are measured, since sources that strangers
// make up seldom ask twice; and how many wait.
const (
	mostClients   = 4096
	clientsLast   = 10 * time.Minute
	clientsAsk    = 2 * time.Second
	clientsWait   = 64
	echoesAtOnce  = 4
	clientTimeout = 3 * time.Second
)

// New makes Names that know nothing yet.
func New(hub Hub, clock onpath.Clock) *Names {
	return &Names{hub: hub, clock: clock, asked: make(chan netip.Addr, clientsWait), young: map[netip.Prefix]clientRTTs{}}
}

// Directory is where names of services lead now; nil: nothing was planned yet.
func (n *Names) Directory() *near.Directory { return n.directory.Load() }

// Note takes up how services and cloudlets stand, and which gateways are connected in each.
func (n *Names) Note(objects map[onpath.Key]onpath.Object, cloudlets near.Map, gateways map[string][]string) {
	now := lastNoted{objects: map[onpath.Object]bool{}, cloudlets: near.Map{}}
	var services []*onpath.Service
	var tenants []*onpath.Tenant
	for _, o := range objects {
		switch o := o.(type) {
		case *onpath.Service:
			services = append(services, o)
			now.objects[o] = true
		case *onpath.Tenant:
			if len(o.Spec.Zones) > 0 {
				tenants = append(tenants, o)
				now.objects[o] = true
			}
		}
	}
	if len(services) > 0 {
		now.cloudlets = cloudlets
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gateways = gateways
	if n.directory.Load() == nil || !now.same(n.last) {
		n.last = now
		n.directory.Store(near.NewDirectory(services, tenants, now.cloudlets, n.measured))
	}
}

// same compares objects by identity: a changed one is another.
func (x lastNoted) same(y lastNoted) bool {
	return maps.Equal(x.objects, y.objects) && maps.EqualFunc(x.cloudlets, y.cloudlets, func(a, b near.Cloudlet) bool {
		return a.Location == b.Location && slices.Equal(a.Prefixes, b.Prefixes) && maps.Equal(a.RTT, b.RTT)
	})
}

// clientsOf is the network for which a client's round trips stand.
func clientsOf(a netip.Addr) netip.Prefix {
	bits := 24
	if a.Is6() {
		bits = 48
	}
	p, _ := a.Prefix(bits)
	return p
}

// measured are the round trips to clients with addresses of a prefix.
func (n *Names) measured(p netip.Prefix) map[string]time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := clientsOf(p.Addr())
	if x, ok := n.young[k]; ok {
		return x.rtt
	}
	return n.old[k].rtt
}

// Seen has the round trips to a client measured, if they are not known and its network has
// asked for some seconds: by a gateway of each cloudlet. When many come at once, some have
// to ask again.
func (n *Names) Seen(a netip.Addr) {
	if !onpath.Claimable(a) || n.Directory().Knows(a) || !n.lasting(clientsOf(a), n.clock()) {
		return
	}
	select {
	case n.asked <- a:
	default:
	}
}

// lasting notes that clients of a network ask, and reports whether they are to be measured.
func (n *Names) lasting(k netip.Prefix, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	x, ok := n.young[k]
	if !ok {
		if x, ok = n.old[k]; !ok {
			x.first = now
		}
		n.keep(k, x)
	}
	return !x.known(now) && now.Sub(x.first) >= clientsAsk
}

// keep notes the round trips of a network. Callers hold mu.
func (n *Names) keep(k netip.Prefix, x clientRTTs) {
	if _, ok := n.young[k]; !ok && len(n.young) >= mostClients {
		n.old, n.young = n.young, map[netip.Prefix]clientRTTs{}
	}
	n.young[k] = x
}

// Run measures round trips to clients seen until ctx ends.
func (n *Names) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for range echoesAtOnce {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case a := <-n.asked:
					n.measure(ctx, a)
				}
			}
		})
	}
}

func (n *Names) measure(ctx context.Context, a netip.Addr) {
	k := clientsOf(a)
	n.mu.Lock()
	now := n.clock()
	x := n.young[k]
	if x.known(now) { // by another worker, meanwhile
		n.mu.Unlock()
		return
	}
	x.at = now
	n.keep(k, x)
	n.mu.Unlock()
	x.rtt = n.roundTripsTo(ctx, a)
	x.at = n.clock()
	n.mu.Lock()
	n.keep(k, x)
	n.mu.Unlock()
}

// roundTripsTo are the round trips from a gateway of each cloudlet to an address.
func (n *Names) roundTripsTo(ctx context.Context, a netip.Addr) map[string]time.Duration {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]time.Duration{}
	n.mu.Lock()
	gateways := n.gateways
	n.mu.Unlock()
	for cloudlet, nodes := range gateways {
		wg.Go(func() {
			answer, err := n.echo(ctx, nodes[rand.IntN(len(nodes))], a)
			if err == nil && answer.RTT > 0 {
				mu.Lock()
				out[cloudlet] = time.Duration(answer.RTT)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return out
}

func (n *Names) echo(ctx context.Context, node string, to netip.Addr) (a onpath.EchoAnswer, err error) {
	s, err := n.hub.Call(ctx, node, onpath.OpEcho, onpath.EchoRequest{Address: to})
	if err != nil {
		return a, err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	b, err := io.ReadAll(io.LimitReader(s, 1<<12))
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return a, err
}
