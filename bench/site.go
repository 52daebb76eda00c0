package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/bench/traffic"
	"github.com/onpath/onpath/internal/netnsrun"
)

// site is a client and a server with sockets and a gateway between, with the
// offloads that veth has: what containers and tunnels are measured with. Both ends
// and the function between share a CPU: two would wait for each other, now more
// now less, and throughput then tells of the scheduler.
type site struct {
	*testnet.Network
	client, gateway, server string          // namespaces
	stream, bell            *traffic.Stream // for throughput, and for round trips
	cpu                     int
}

// Where the client and the server are; the gateway has the first address of each
// subnet, its devices are devIn and devOut.
var (
	netSiteClient = netip.MustParsePrefix("10.1.0.0/24")
	netSiteServer = netip.MustParsePrefix("10.9.0.0/24")
	siteServer    = netip.MustParseAddrPort("10.9.0.2:5001")
	siteBell      = netip.MustParseAddrPort("10.9.0.2:5002")
)

// newSite makes the three namespaces; the gateway forwards nothing yet.
func (r *Run) newSite(name string) (*site, error) { return r.siteOf(name, (*site).wireGateway) }

// siteOf makes a site, which wire fills.
func (r *Run) siteOf(name string, wire func(*site) error) (*site, error) {
	b, err := r.testnet(name)
	if err != nil {
		return nil, err
	}
	t := &site{Network: b, cpu: r.cpu}
	if err := wire(t); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// wireGateway puts the gateway between client and server.
func (t *site) wireGateway() error { return t.wireBetween(testnet.Pair) }

// wireBetween is wireGateway with a client that some other way joins to the gateway.
func (t *site) wireBetween(join func(gateway, client testnet.End) error) (err error) {
	for ns, name := range map[*string]string{&t.client: "client", &t.gateway: "gateway", &t.server: "server"} {
		if *ns, err = t.Namespace(name); err != nil {
			return err
		}
	}
	for _, p := range []struct {
		ns, dev string
		subnet  netip.Prefix
		join    func(a, b testnet.End) error
	}{{t.client, devIn, netSiteClient, join}, {t.server, devOut, netSiteServer, testnet.Pair}} {
		gw, host := p.subnet.Addr().Next(), p.subnet.Addr().Next().Next()
		err := p.join(testnet.End{NS: t.gateway, Dev: p.dev, Addrs: []netip.Prefix{netip.PrefixFrom(gw, p.subnet.Bits())}},
			testnet.End{NS: p.ns, Dev: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(host, p.subnet.Bits())}})
		if err != nil {
			return err
		}
		if err := testnet.Route(p.ns, "eth0", anywhere, gw); err != nil {
			return err
		}
	}
	return nil
}

// name is the testnet's.
func (t *site) name() string { return filepath.Base(t.Dir()) }

// open connects client and server, trying again until the way is ready.
func (t *site) open(ctx context.Context) (err error) {
	spec := traffic.StreamSpec{From: t.client, To: t.server, Address: siteServer, FromCPU: t.cpu, ToCPU: t.cpu, Congestion: "cubic", DialTimeout: time.Second}
	if t.stream, err = t.connect(ctx, spec); err != nil {
		return err
	}
	spec.Address = siteBell
	t.bell, err = t.connect(ctx, spec)
	return err
}

func (t *site) connect(ctx context.Context, spec traffic.StreamSpec) (s *traffic.Stream, err error) {
	for range 20 {
		if s, err = traffic.OpenStream(spec); err == nil {
			t.After(s.Close)
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, fmt.Errorf("no connection through it: %w", err)
}

// pumped is what a stream moved, in one turn or several.
type pumped struct {
	bytes  uint64
	time   time.Duration
	worked time.Duration // by all CPUs
}

func (p *pumped) add(o pumped) {
	p.bytes += o.bytes
	p.time += o.time
	p.worked += o.worked
}

// rate in bit/s.
func (p *pumped) rate() float64 { return float64(p.bytes) * 8 / p.time.Seconds() }

// cpu is the time of all CPUs, ns/byte.
func (p *pumped) cpu() float64 { return float64(p.worked.Nanoseconds()) / float64(p.bytes) }

func (t *site) pump(ctx context.Context, long time.Duration) (p pumped, err error) {
	var worked []time.Duration
	got, err := t.stream.Pump(ctx, long/4, long, func() {
		w, _ := allCPUTime()
		worked = append(worked, w)
	})
	if err != nil {
		return p, err
	}
	if got.Bytes == 0 {
		return p, errors.New("no byte arrived")
	}
	return pumped{got.Bytes, got.Time, worked[1] - worked[0]}, nil
}

// roundTrip is the median, µs.
func (t *site) roundTrip(ctx context.Context, n int) (float64, error) {
	times, err := t.bell.RoundTrips(ctx, n)
	if err != nil {
		return 0, err
	}
	return micros(times[len(times)/2]), nil
}

// serve has the server do something with each connection to an address of its own, until
// the site is closed.
func (t *site) serve(at netip.AddrPort, each func(net.Conn)) error {
	var l net.Listener
	err := netnsrun.Do(t.server, func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		return err
	}
	t.After(l.Close)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				each(c)
			}()
		}
	}()
	return nil
}
