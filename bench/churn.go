package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/netnsrun"
)

const (
	churnAlive = "through one element, with the agent"
	churnDead  = "through one element, without the agent"
	churnNAT   = "by outbound translation, to one resolver and one origin"

	metricFailed     = "failed connections"
	metricLostOld    = "lost connections"
	metricMoved      = "flows that changed instance"
	metricUnanswered = "questions without an answer"
	metricUDP        = "new UDP flows"
	metricTCP        = "new connections"
	unitFlowRate     = "flows/s"

	// What is asked for: new flows a second.
	churnUDP, churnTCP, churnNATEach = 10_000, 1_000, 500
	churnTime                        = 3 * time.Minute
)

func churn() Benchmark {
	b := Benchmark{
		Name: "churn", rounds: 1, byName: true, cost: cost{20 * time.Second, 3*churnTime + 20*time.Second},
		Question: "flows that begin and end all the while, default settings: 10,000 of UDP a second (60 % questions of DNS, " +
			"a third of the rest unanswered) and 1,000 short connections",
		run: runChurn,
	}
	for _, kase := range []string{churnAlive, churnDead} {
		b.Targets = append(b.Targets,
			Target{Text: "no established connection is lost", Case: kase, Contestant: "onpath-tc", Metric: metricLostOld, Max: noneAtAll},
			Target{Text: "no short connection fails", Case: kase, Contestant: "onpath-tc", Metric: metricFailed, Max: noneAtAll},
			Target{Text: "every answered flow keeps its instance", Case: kase, Contestant: "onpath-tc", Metric: metricMoved, Max: noneAtAll})
	}
	for _, metric := range []string{metricFailed, metricUnanswered} {
		b.Targets = append(b.Targets, Target{Text: "500 questions and 500 connections a second: no failure",
			Case: churnNAT, Contestant: "onpath-tc", Metric: metric, Max: noneAtAll})
	}
	return b
}

// noneAtAll is a bound that none keeps, and one does not.
const noneAtAll = 0.5

// churnFor is how long each case lasts.
func (r *Run) churnFor() time.Duration {
	if r.Churn > 0 {
		return r.Churn
	}
	return pick(r, churnTime, 4*time.Second)
}

// The clients have addresses enough for a flow never to come twice. The private ones are an
// instance's: Linux keeps a port for a minute after a connection, and has 28,000 of them for
// each address, which is less than 500 connections a second use.
var (
	churnClients = netip.MustParsePrefix("10.64.0.0/16")
	churnPrivate = []netip.Addr{netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("100.64.0.10"),
		netip.MustParseAddr("100.64.0.11"), netip.MustParseAddr("100.64.0.12")}
	churnServer = netip.MustParseAddr("10.9.0.2")
)

// Instances of the element, and the one that speaks for itself.
const (
	churnFirst, churnSecond = onpath.VportID(16), onpath.VportID(17)
	churnSpeaker            = onpath.VportID(18)
)

func runChurn(ctx context.Context, r *Run) error {
	for round := range r.Rounds() {
		for _, measure := range []func(context.Context, int, *churnSite) error{r.churnThrough, r.churnTranslated} {
			if err := r.onChurnSite(ctx, round, measure); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// churnSite is a site with its data path and with an instance that speaks for itself.
type churnSite struct {
	*site
	d       *ebpf.Driver
	speaker string // its namespace
}

// onChurnSite measures on a site of its own: nobody else's flows are there.
func (r *Run) onChurnSite(ctx context.Context, round int, measure func(context.Context, int, *churnSite) error) (err error) {
	t, err := r.newSite("onpath-tc")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	s := &churnSite{site: t}
	if s.speaker, err = t.wireChurn(); err != nil {
		return err
	}
	// The default of a node on this machine; the site's is that of one among several.
	o := ebpf.Options{Name: t.name(), PinPath: pinPath, Log: r.Log, Flows: ebpf.MachineFlows()}
	if s.d, err = openDatapath(t.gateway, o); err != nil {
		return err
	}
	t.After(func() error { // once more, for it may be closed
		_ = s.d.Close()
		d, err := openDatapath(t.gateway, o)
		if err != nil {
			return err
		}
		return errors.Join(d.Remove(context.Background()), d.Close())
	})
	if err := errors.Join(s.d.Apply(ctx, churnConfig(1)), t.answerChurn()); err != nil {
		return err
	}
	return measure(ctx, round, s)
}

// churnThrough begins flows through the element, first with the agent and then without.
func (r *Run) churnThrough(ctx context.Context, round int, s *churnSite) error {
	long := r.churnFor()
	old, err := s.keepOpen(50)
	if err != nil {
		return err
	}
	defer old.close()
	for _, kase := range []string{churnAlive, churnDead} {
		r.say("%s: %v", kase, long)
		var half func() error
		if kase == churnAlive { // the shares change, and flows that are there stay
			half = func() error { return s.d.Apply(ctx, churnConfig(3)) }
		} else if err := s.d.Close(); err != nil {
			return err
		}
		got, err := s.churn(ctx, long, half)
		if err != nil {
			return fmt.Errorf("%s: %w", kase, err)
		}
		r.churned(kase, round, got, old.lost())
	}
	return nil
}

// churnTranslated has an instance ask and connect from its private address.
func (r *Run) churnTranslated(ctx context.Context, round int, s *churnSite) error {
	long := r.churnFor()
	r.say("%s: %v", churnNAT, long)
	got := askAndConnect(ctx, s.speaker, churnPrivate, churnServer, churnNATEach, long)
	r.sayWhy(churnNAT, got)
	r.sample(churnNAT, "onpath-tc", metricUDP, unitFlowRate, round, float64(got.asked)/long.Seconds())
	r.sample(churnNAT, "onpath-tc", metricTCP, unitFlowRate, round, float64(got.connected)/long.Seconds())
	r.sample(churnNAT, "onpath-tc", metricUnanswered, "questions", round, float64(got.unanswered))
	r.sample(churnNAT, "onpath-tc", metricFailed, "connections", round, float64(got.failed))
	return nil
}

// sayWhy says why connections and questions failed.
func (r *Run) sayWhy(kase string, got churned) {
	for why, n := range got.why.of {
		r.say("%s: %d failed: %s", kase, n, why)
	}
}

func (r *Run) churned(kase string, round int, got churned, lost int64) {
	r.sayWhy(kase, got)
	for _, m := range []struct {
		metric, unit string
		value        float64
	}{
		{metricUDP, unitFlowRate, got.udp}, {metricTCP, unitFlowRate, got.tcp}, {metricLostOld, "connections", float64(lost)},
		{metricFailed, "connections", float64(got.failed)}, {metricMoved, "flows", float64(got.moved)},
		{metricUnanswered, "questions", float64(got.unanswered)}, {"answered flows", "flows", float64(got.followed)},
		{"first packets by the second instance", "flows", float64(got.second)}, {"slowest answer", unitMillis, float64(got.slowest)},
	} {
		r.sample(kase, "onpath-tc", m.metric, m.unit, round, m.value)
	}
}

// wireChurn adds what a site lacks: the clients' addresses, three instances, of which the
// second marks what it forwards, and one has private addresses.
func (t *site) wireChurn() (speaker string, err error) {
	for _, id := range []onpath.VportID{churnFirst, churnSecond, churnSpeaker} {
		ns, err := wireRouted(t.Network, t.gateway, id, true)
		if err != nil {
			return "", err
		}
		switch id {
		case churnSecond:
			err = netnsrun.Do(ns, markForwarded)
		case churnSpeaker:
			speaker = ns
			err = netnsrun.Do(ns, func() error { return addAddresses("eth0", churnPrivate) })
		}
		if err != nil {
			return "", err
		}
	}
	err = netnsrun.Do(t.client, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: ipNet(churnClients), Type: unix.RTN_LOCAL,
			Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("give the clients their addresses: %w", err)
		}
		return nil
	})
	client := netSiteClient.Addr().Next().Next()
	return speaker, errors.Join(err, testnet.Route(t.gateway, devIn, churnClients, client), testnet.Set(t.gateway, "ipv4/ip_forward=1"))
}

func addAddresses(dev string, addresses []netip.Addr) error {
	l, err := netlink.LinkByName(dev)
	for _, a := range addresses {
		if err == nil {
			err = netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))})
		}
	}
	return err
}

// markForwarded has Linux set DSCP 1 in what it forwards, so that its receiver sees which way
// it has come.
func markForwarded() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "mark", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 0, Len: 2},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0x03}, Xor: []byte{0, 1 << 2}},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 0, Len: 2,
			CsumType: expr.CsumTypeInet, CsumOffset: 10},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("have an instance mark what it forwards: %w", err)
	}
	return nil
}

// churnConfig sends all to the server through one of two instances, the second with a
// weight; a third may speak for itself.
func churnConfig(weight uint32) *onpath.DatapathConfig {
	match := onpath.Match{Src: []netip.Prefix{churnClients, netSiteClient}, Dst: netPrefixes(netSiteServer)}
	c := chainConfig(match, routedElement(churnFirst))
	c.Vports = append(c.Vports, routedElement(churnSecond).vports()...)
	speaks := localVport(churnSpeaker, churnSpeaker, onpath.Routed)
	speaks.Own, speaks.Routes = churnPrivate, true
	c.Vports = append(c.Vports, speaks)
	for i := range c.Groups {
		c.Groups[i].Members = append(c.Groups[i].Members, onpath.Member{Vport: churnSecond, Key: uint32(churnSecond), Weight: weight})
	}
	c.Edge.NAT = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}
	return c
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
