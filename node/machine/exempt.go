package machine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/base"
)

// Chains may name the hosts of a node, whose own traffic an uplink with attach: host
// then steers. What keeps the node itself in the network they never take, whatever they
// select: its tunnels, its connections to the server, and what a cloud tells its
// machines. Nor do chains take what the node needs to start the instances through which
// they would lead it: images that it fetches, the machine's name servers and its clock.
// (Link-local addresses and DHCP the data path leaves alone at every uplink.)
// What others have with the same servers, by way of this machine, chains do take.

// Exempt knows who the node itself speaks with.
type Exempt struct {
	part    *base.Part
	rounds  *base.Rounds
	machine *Machine
	up      <-chan struct{} // closed when the saved plan is in force

	mu        sync.Mutex
	carries   bool             // chains may take the machine's own traffic
	control   []netip.AddrPort // the server's
	connected []netip.AddrPort // where images come from, one for each connection
}

// NewExempt makes one. up is closed when the saved plan is in force.
func NewExempt(p *base.Part, r *base.Rounds, m *Machine, up <-chan struct{}) *Exempt {
	return &Exempt{part: p, rounds: r, machine: m, up: up}
}

// Follow takes up a plan.
func (e *Exempt) Follow(p *onpath.NodePlan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.carries = p.Datapath.Edge.CarriesHost()
}

// Rules are for what the node has now, on a machine that has been seen so.
func (e *Exempt) Rules(u onpath.Underlay, m Sighting) []onpath.Rule {
	e.mu.Lock()
	defer e.mu.Unlock()
	return exemptions(u, m, e.control, e.connected)
}

// metadata are the addresses, but link-local ones, at which clouds tell a machine of
// itself: of AWS and Google by IPv6, of Azure and Alibaba.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
	netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("100.100.100.200"),
}

// exemptions are the rules for these, on a machine that has been seen so. Answers are
// exempt at the ports from which the machine asks: who sends from a port at which others
// answer reaches no other port of the machine.
func exemptions(u onpath.Underlay, m Sighting, control, connected []netip.AddrPort) (rules []onpath.Rule) {
	own, resolvers := m.Addresses, m.resolvers
	if len(own) == 0 {
		return nil
	}
	leave := func(m onpath.Match) {
		rules = append(rules, onpath.Rule{Match: m, Action: onpath.Action{Kind: onpath.ActionExit}})
	}
	here, clouds := hosts(own), hosts(metadata)
	if u.Address.IsValid() {
		leave(onpath.Match{Dst: hosts([]netip.Addr{u.Address}), Protocol: []uint8{unix.IPPROTO_UDP}, DstPorts: onePort(u.Port)})
	}
	leave(onpath.Match{Src: here, Protocol: []uint8{unix.IPPROTO_UDP}, SrcPorts: onePort(u.WireGuardPort())})
	leave(onpath.Match{Dst: here, Protocol: []uint8{unix.IPPROTO_UDP}, DstPorts: onePort(u.WireGuardPort())})
	// asks has the machine ask others (nil: any) at a port, and get answers at the ports
	// that the kernel gives to those who ask, and at more.
	asks := func(others []netip.Prefix, protocol uint8, port uint16, more ...onpath.PortRange) {
		leave(onpath.Match{Src: here, Dst: others, Protocol: []uint8{protocol}, DstPorts: onePort(port)})
		leave(onpath.Match{Src: others, Dst: here, Protocol: []uint8{protocol}, SrcPorts: onePort(port),
			DstPorts: append(more, m.askFrom)})
	}
	for _, s := range control {
		if s.Addr().IsUnspecified() || slices.Contains(own, s.Addr()) { // it is on this machine, for all nodes
			leave(onpath.Match{Dst: here, Protocol: []uint8{unix.IPPROTO_TCP}, DstPorts: onePort(s.Port())})
			leave(onpath.Match{Src: here, Protocol: []uint8{unix.IPPROTO_TCP}, SrcPorts: onePort(s.Port())})
			continue
		}
		asks(hosts([]netip.Addr{s.Addr()}), unix.IPPROTO_TCP, s.Port())
	}
	leave(onpath.Match{Src: here, Dst: clouds})
	leave(onpath.Match{Src: clouds, Dst: here})
	connected = slices.SortedFunc(slices.Values(connected), netip.AddrPort.Compare)
	for _, to := range slices.Compact(connected) {
		asks(hosts([]netip.Addr{to.Addr()}), unix.IPPROTO_TCP, to.Port())
	}
	if len(resolvers) > 0 {
		asks(hosts(resolvers), unix.IPPROTO_UDP, dnsPort)
		asks(hosts(resolvers), unix.IPPROTO_TCP, dnsPort)
	}
	asks(nil, unix.IPPROTO_UDP, ntpPort, onePort(ntpPort)...) // of time servers most are known by their pool alone
	return rules
}

// askFrom are the ports that the kernel gives to connections of the machine.
func askFrom(netNS string) onpath.PortRange {
	var data []byte
	err := netnsrun.Do(netNS, func() (err error) {
		data, err = os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
		return err
	})
	var p onpath.PortRange
	if _, bad := fmt.Sscan(string(data), &p.First, &p.Last); err != nil || bad != nil {
		return onpath.PortRange{First: 32768, Last: 60999} // the kernel's default
	}
	return p
}

// The ports at which name servers and time servers answer.
const (
	dnsPort = 53
	ntpPort = 123
)

// resolverFiles name the machine's name servers; the second those that systemd's local
// one asks.
var resolverFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// resolversOf are the name servers in files like resolv.conf, but those on the machine itself.
func resolversOf(files []string) (list []netip.Addr) {
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != "nameserver" {
				continue
			}
			if a, err := netip.ParseAddr(words[1]); err == nil && !a.IsLoopback() && !slices.Contains(list, a.Unmap().WithZone("")) {
				list = append(list, a.Unmap().WithZone(""))
			}
		}
	}
	return list
}

// mostConnected is how many of the node's own connections are exempt at a time.
const mostConnected = 128

// Connects is called before the node connects to a registry. It returns when no chain can
// take the connection any more, or when that takes too long. The caller calls ends when the
// connection is closed; chains then take what comes from there.
func (e *Exempt) Connects(ctx context.Context, to netip.AddrPort) (ends func()) {
	e.mu.Lock()
	own := e.carries
	known, full := slices.Contains(e.connected, to), len(e.connected) >= mostConnected
	if !full {
		e.connected = append(e.connected, to)
	}
	e.mu.Unlock()
	if full { // one that is in use must not lose its exemption to another
		e.part.Log.Warn("chains may take a connection of the node's own: too many others are exempt", "to", to, "most", mostConnected)
		return func() {}
	}
	if own && !known && !to.Addr().IsLoopback() {
		e.soon(ctx)
	}
	return sync.OnceFunc(func() {
		e.mu.Lock()
		i := slices.Index(e.connected, to)
		e.connected = slices.Delete(e.connected, i, i+1)
		e.mu.Unlock()
		e.rounds.Kick(false)
	})
}

// soon waits for the rules that exempt what is to be exempt now, not too long.
func (e *Exempt) soon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, controlWait)
	defer cancel()
	_ = e.rounds.Sync(ctx)
}

func hosts(list []netip.Addr) (out []netip.Prefix) {
	for _, a := range list {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

func onePort(p uint16) []onpath.PortRange { return []onpath.PortRange{{First: p, Last: p}} }

// controlWait is how long a connection of the node's own waits for the rules that exempt it.
const controlWait = 2 * time.Second

// SetControl says where the server is, host:port, or at which port of this machine it
// listens; it is called before each connection to it, since names may come to mean other
// addresses, and the machine may have got others. It returns when no chain can take the
// connection any more, or when that takes too long.
func (e *Exempt) SetControl(ctx context.Context, server string) {
	list, err := serverAddresses(ctx, server)
	if err != nil {
		e.part.Log.Debug("where the server is cannot be found out; what it was stays exempt", "server", server, "err", err)
		return
	}
	e.mu.Lock()
	e.control = list
	own := e.carries
	e.mu.Unlock()
	if !own {
		return
	}
	select {
	case <-e.up:
	default:
		return // the first configuration has it
	}
	e.machine.Look()
	e.soon(ctx)
}

func serverAddresses(ctx context.Context, server string) (list []netip.AddrPort, err error) {
	host, service, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	addrs := []netip.Addr{netip.IPv6Unspecified()}
	if host != "" {
		addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	for _, a := range addrs {
		list = append(list, netip.AddrPortFrom(a.Unmap().WithZone(""), uint16(number)))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list), err
}
