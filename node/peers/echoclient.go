package peers

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/base"
)

// How often a client is asked by echo, and how long an answer may take.
const (
	echoTries    = 3
	echoPatience = 500 * time.Millisecond
)

// EchoClient measures the round trip from the node's uplinks to an address.
func EchoClient(ctx context.Context, p *base.Part, r onpath.EchoRequest) (answer onpath.EchoAnswer) {
	if !onpath.Claimable(r.Address) {
		return answer
	}
	network, local := "ip6:ipv6-icmp", "::"
	if r.Address.Is4() {
		network, local = "ip4:icmp", "0.0.0.0"
	}
	var c *icmp.PacketConn
	err := netnsrun.Do(p.NetNS, func() (err error) { c, err = icmp.ListenPacket(network, local); return err })
	if err != nil {
		p.Log.Debug("a client's round trip cannot be measured", "err", err)
		return answer
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	id := rand.IntN(1 << 16)
	for seq := range echoTries {
		if rtt := echoOnce(c, r.Address, id, seq); rtt > 0 && (answer.RTT == 0 || rtt < time.Duration(answer.RTT)) {
			answer.RTT = onpath.Duration(rtt)
		}
	}
	return answer
}

// echoOnce is one round trip; 0: no answer came in time.
func echoOnce(c *icmp.PacketConn, to netip.Addr, id, seq int) time.Duration {
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: id, Seq: seq, Data: []byte("onpath")}}
	protocol := 1
	if to.Is6() {
		m.Type, protocol = ipv6.ICMPTypeEchoRequest, 58
	}
	b, err := m.Marshal(nil)
	if err != nil {
		return 0
	}
	began := time.Now()
	if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return 0
	}
	_ = c.SetReadDeadline(began.Add(echoPatience))
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return 0
		}
		got, err := icmp.ParseMessage(protocol, buf[:n])
		if err != nil {
			continue
		}
		e, ok := got.Body.(*icmp.Echo)
		answer := got.Type == ipv4.ICMPTypeEchoReply || got.Type == ipv6.ICMPTypeEchoReply
		ip, _ := from.(*net.IPAddr)
		if ok && answer && e.ID == id && e.Seq == seq && ip != nil && ip.IP.Equal(net.IP(to.AsSlice())) {
			return time.Since(began)
		}
	}
}
