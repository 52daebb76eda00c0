package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/fleet"
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

// The clients have addresses enough for a flow never to come twice.
var (
	churnClients = netip.MustParsePrefix("10.64.0.0/16")
	churnServer  = netip.MustParseAddr("10.9.0.2")
)

// churnYAML is a chain to the server through instances of an element, and instances that
// speak for themselves: Linux keeps a port for a minute after a connection, and has 28,000 of
// them for each address, which is less than 500 connections a second use.
var churnYAML = gatewayNode(onpath.FastAuto) + hopFunction + churnElement(2) +
	chain(fmt.Sprintf("{prefixes: [%s, %s]}", churnClients, netSiteClient), toSiteServer, "{deployment: element}") +
	bareFunction("speaker", "addresses: private, outbound: nat") +
	object(onpath.KindDeployment, "speaker", "{function: speaker, instances: 4, place: {cloudlets: [pop]}}")

func churnElement(instances int) string {
	return object(onpath.KindDeployment, "element", fmt.Sprintf("{function: hop, instances: %d}", instances))
}

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

// churnSite is a site with its data path and instances, as planned.
type churnSite struct {
	*site
	f         *fleet.Fleet
	d         *ebpf.Driver
	instances []instance
}

// onChurnSite measures on a site of its own: nobody else's flows are there.
func (r *Run) onChurnSite(ctx context.Context, round int, measure func(context.Context, int, *churnSite) error) (err error) {
	t, err := r.newSite("onpath-tc")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	s := &churnSite{site: t}
	if s.f, err = planned(churnYAML); err != nil {
		return err
	}
	c, err := s.wireChurn()
	if err != nil {
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
	if err := errors.Join(s.d.Apply(ctx, c), t.answerChurn()); err != nil {
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
			half = func() error { return s.addInstance(ctx) }
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
	got := askAndConnect(ctx, s.of("speaker"), churnServer, churnNATEach, long)
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

// of are the instances of a deployment.
func (s *churnSite) of(deployment string) []instance {
	return slices.DeleteFunc(slices.Clone(s.instances), func(i instance) bool { return i.Deployment != deployment })
}

// wireChurn adds what a site lacks: the clients' addresses, and the instances, of which those
// of the element mark what they forward with their number.
func (s *churnSite) wireChurn() (*onpath.DatapathConfig, error) {
	c, list, err := wirePlan(s.Network, s.gateway, s.f.Plan(gatewayName))
	if err != nil {
		return nil, err
	}
	s.instances = list
	for mark, i := range s.of("element") {
		if err := netnsrun.Do(i.ns, func() error { return markForwarded(byte(mark)) }); err != nil {
			return nil, err
		}
	}
	err = netnsrun.Do(s.client, func() error {
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
	return c, errors.Join(err, testnet.Route(s.gateway, devIn, churnClients, client))
}

// addInstance has the element get another instance, which takes a share of the new flows.
func (s *churnSite) addInstance(ctx context.Context) error {
	list, err := objectsIn(churnElement(3))
	if err == nil {
		err = s.f.Apply(list)
	}
	if err != nil {
		return err
	}
	p := s.f.Plan(gatewayName)
	for _, i := range p.Instances {
		if slices.ContainsFunc(s.instances, func(o instance) bool { return o.Vport == i.Vport }) {
			continue
		}
		ns, err := wireInstance(s.Network, s.gateway, i)
		if err == nil {
			err = netnsrun.Do(ns, func() error { return markForwarded(byte(len(s.of("element")))) })
		}
		if err != nil {
			return err
		}
	}
	return s.d.Apply(ctx, effective(p, true))
}

func addAddresses(dev string, addresses []netip.Prefix) error {
	l, err := netlink.LinkByName(dev)
	for _, a := range addresses {
		if err == nil && a.Addr().Is4() { // a bench's namespaces have no IPv6
			err = netlink.AddrAdd(l, &netlink.Addr{IPNet: ipNet(a)})
		}
	}
	return err
}

// markForwarded has Linux set a DSCP in what it forwards, so that its receiver sees which way
// it has come.
func markForwarded(dscp byte) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "mark", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 0, Len: 2},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0x03}, Xor: []byte{0, dscp << 2}},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 0, Len: 2,
			CsumType: expr.CsumTypeInet, CsumOffset: 10},
	}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("have an instance mark what it forwards: %w", err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
