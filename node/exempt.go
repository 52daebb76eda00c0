package node

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

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

const protocolTCP, protocolUDP = 6, 17

// exempt puts rules for these before those of the edge's table; own are the machine's
// addresses.
func exempt(c *onpath.DatapathConfig, own []netip.Addr, control []netip.AddrPort) {
	if c.Edge == nil || c.Edge.Table == 0 ||
		!slices.ContainsFunc(c.Edge.Uplinks, func(u onpath.Uplink) bool { return u.Attach == onpath.AttachHost }) {
		return
	}
	at := slices.IndexFunc(c.Tables, func(t onpath.Table) bool { return t.ID == c.Edge.Table })
	if at < 0 {
		return
	}
	rules := exemptions(c.Underlay, hosts(own), control)
	c.Tables = slices.Clone(c.Tables)
	t := &c.Tables[at]
	t.Rules = slices.Concat(rules, t.Rules)
}

func exemptions(u onpath.Underlay, own []netip.Prefix, control []netip.AddrPort) (rules []onpath.Rule) {
	leave := func(m onpath.Match) {
		rules = append(rules, onpath.Rule{Match: m, Action: onpath.Action{Kind: onpath.ActionExit}})
	}
	if u.Address.IsValid() {
		leave(onpath.Match{Dst: hosts([]netip.Addr{u.Address}), Protocol: []uint8{protocolUDP}, DstPorts: onePort(u.Port)})
	}
	for _, s := range control {
		at := hosts([]netip.Addr{s.Addr()})
		leave(onpath.Match{Src: own, Dst: at, Protocol: []uint8{protocolTCP}, DstPorts: onePort(s.Port())})
		leave(onpath.Match{Src: at, Dst: own, Protocol: []uint8{protocolTCP}, SrcPorts: onePort(s.Port())})
	}
	leave(onpath.Match{Src: own, Dst: hosts(metadata)})
	leave(onpath.Match{Src: hosts(metadata), Dst: own})
	return rules
}

func hosts(list []netip.Addr) (out []netip.Prefix) {
	for _, a := range list {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

func onePort(p uint16) []onpath.PortRange { return []onpath.PortRange{{First: p, Last: p}} }

// controlWait is how long a connection to the server waits for the rule that exempts it.
const controlWait = 2 * time.Second

// SetControl says where the server is, host:port; it is called before each connection to
// it, since names may come to mean other addresses. It returns when no chain can take
// the connection any more, or when that takes too long.
func (a *Agent) SetControl(ctx context.Context, server string) {
	ctx, cancel := context.WithTimeout(ctx, controlWait)
	defer cancel()
	list, err := serverAddresses(ctx, server)
	if err != nil {
		return // nor will the connection come about
	}
	a.mu.Lock()
	known := slices.Equal(a.control, list)
	a.control = list
	a.mu.Unlock()
	if known {
		return
	}
	select {
	case <-a.up:
	default:
		return // the first configuration has it
	}
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
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for _, a := range addrs {
		list = append(list, netip.AddrPortFrom(a.Unmap().WithZone(""), uint16(number)))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list), err
}
