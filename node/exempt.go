package node

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// Chains may name the hosts of a node, whose own traffic an uplink with attach: host
// then steers. What keeps the node itself in the network they never take, whatever they
// select: its tunnels, its connections to the server, and what a cloud tells its
// machines. (Link-local addresses and DHCP the data path leaves alone at every uplink.)
// What others have with the same servers, by way of this machine, chains do take.

// metadata are the addresses, but link-local ones, at which clouds tell a machine of
// itself: of AWS and Google by IPv6, of Azure and Alibaba.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
	netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("100.100.100.200"),
}

// exemptions are the rules for these, on a machine with the addresses own.
func exemptions(u onpath.Underlay, own []netip.Addr, control []netip.AddrPort) (rules []onpath.Rule) {
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
	for _, s := range control {
		server, client := hosts([]netip.Addr{s.Addr()}), here
		if s.Addr().IsUnspecified() || slices.Contains(own, s.Addr()) { // it is on this machine, for all nodes
			server, client = here, nil
		}
		leave(onpath.Match{Src: client, Dst: server, Protocol: []uint8{unix.IPPROTO_TCP}, DstPorts: onePort(s.Port())})
		leave(onpath.Match{Src: server, Dst: client, Protocol: []uint8{unix.IPPROTO_TCP}, SrcPorts: onePort(s.Port())})
	}
	leave(onpath.Match{Src: here, Dst: clouds})
	leave(onpath.Match{Src: clouds, Dst: here})
	return rules
}

func hosts(list []netip.Addr) (out []netip.Prefix) {
	for _, a := range list {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

func onePort(p uint16) []onpath.PortRange { return []onpath.PortRange{{First: p, Last: p}} }

// controlWait is how long a connection to the server waits for the rules that exempt it.
const controlWait = 2 * time.Second

// SetControl says where the server is, host:port, or at which port of this machine it
// listens; it is called before each connection to it, since names may come to mean other
// addresses, and the machine may have got others. It returns when no chain can take the
// connection any more, or when that takes too long.
func (a *Agent) SetControl(ctx context.Context, server string) {
	list, err := serverAddresses(ctx, server)
	if err != nil {
		a.log.Debug("where the server is cannot be found out; what it was stays exempt", "server", server, "err", err)
		return
	}
	a.mu.Lock()
	a.control = list
	own := a.plan != nil && a.plan.Datapath.Edge.CarriesHost()
	a.mu.Unlock()
	if !own {
		return
	}
	select {
	case <-a.up:
	default:
		return // the first configuration has it
	}
	a.machine.look()
	ctx, cancel := context.WithTimeout(ctx, controlWait)
	defer cancel()
	n := a.apply.kick(false)
	_ = a.apply.await(ctx, func(t turn) bool { return t.done >= n })
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
