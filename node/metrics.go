package node

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/instance"
	"github.com/onpath/onpath/node/peers"
	"github.com/onpath/onpath/node/punt"
)

var (
	descInstances = prometheus.NewDesc("onpath_node_instances", "Instances on this node by state.", []string{"state"}, nil)
	descRestarts  = prometheus.NewDesc("onpath_node_instance_restarts_total",
		"Restarts of an instance.",
		[]string{"tenant", "instance"}, nil)
	descPlan    = prometheus.NewDesc("onpath_node_plan_generation", "Generation of the plan in force.", nil, nil)
	descPackets = prometheus.NewDesc("onpath_vport_packets_total",
		"Packets (wire segments) that came from (in) and were handed to (out) a vport.",
		[]string{"vport", "instance", "direction"}, nil)
	descBytes = prometheus.NewDesc("onpath_vport_bytes_total",
		"IP bytes that came from (in) and were handed to (out) a vport.",
		[]string{"vport", "instance", "direction"}, nil)
	descDropped = prometheus.NewDesc("onpath_vport_dropped_packets_total",
		"Packets from a vport that were dropped, by reason.",
		[]string{"vport", "instance", "reason"}, nil)
	descDevice = prometheus.NewDesc("onpath_vport_device_dropped_packets_total",
		"Packets that an instance's device lost by itself: handed to it (out), or come from the instance (in).",
		[]string{"vport", "instance", "direction"}, nil)
	descUplink = prometheus.NewDesc("onpath_uplink_packets_total",
		"Packets that came in at an uplink with the fast path, by the path that they took: fast (finished by XDP) or ordinary.",
		[]string{"uplink", "path"}, nil)
	descFlows = prometheus.NewDesc("onpath_node_flow_entries", "Flow entries now.", nil, nil)
	descHeld  = prometheus.NewDesc("onpath_tenant_flow_entries",
		"Flow entries that a tenant has now: established, pending, and of the established those its instances caused.",
		[]string{"tenant", "state"}, nil)
	descHeldMost = prometheus.NewDesc("onpath_tenant_flow_entries_limit",
		"Established flow entries that a tenant may have on this node.",
		[]string{"tenant"}, nil)
	descDeferred = prometheus.NewDesc("onpath_tenant_deferred_packets_total",
		"Packets of flows that were steered but not established, for want of room.",
		[]string{"tenant"}, nil)
	descNewLimit = prometheus.NewDesc("onpath_tenant_new_flows_limit",
		"Flows that a tenant may begin in a second on this node; none where there is no limit.",
		[]string{"tenant"}, nil)
	descRefused = prometheus.NewDesc("onpath_tenant_refused_packets_total",
		"Packets that would have begun more flows than their tenant may, and were dropped.",
		[]string{"tenant"}, nil)
	descLearned = prometheus.NewDesc("onpath_node_flow_entries_learned_total", "Flow entries ever written.", nil, nil)
	descEncap   = prometheus.NewDesc("onpath_node_encapsulated_packets_total",
		"Packets of encapsulations that are not looked into (GRE, IP in IP, MPLS, PPPoE), seen at uplinks.",
		nil, nil)
)

var descNotKept = prometheus.NewDesc("onpath_vport_not_kept_packets_total",
	"Packets handed to a vport while its instance slept or woke that were lost, for more came than is kept, or it did not start.",
	[]string{"vport", "instance"}, nil)

// scrapeTimeout bounds reading the counters for one scrape.
const scrapeTimeout = 2 * time.Second

// Register puts the agent's metrics on a registry.
func (a *Agent) Register(r prometheus.Registerer) error {
	if err := r.Register(a.apply.took); err != nil {
		return err
	}
	if err := r.Register(ownCollector{a.part, a.instances.ReadOwnMetrics}); err != nil {
		return err
	}
	return r.Register(collector{a.part, a.plans, a.instances, a.peers, a.punts})
}

// Metrics describes what an agent serves, for the reference.
func Metrics() []prometheus.Collector { return []prometheus.Collector{newApplyTime(), collector{}} }

// collector reads what metrics tell.
type collector struct {
	part      *base.Part
	plans     *plans
	instances *instance.Set
	peers     *peers.Peers
	punts     *punt.Port
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descInstances, descRestarts, descPlan, descPackets, descBytes, descDropped, descDevice, descNotKept, descUplink,
		descFlows, descLearned, descEncap, descHeld, descHeldMost, descDeferred, descNewLimit, descRefused,
		descVerdicts, descReasons, descSamples, descSpent, descOwn, descKey,
		descKeyBytes, descModule, descRelayed, descRelayedBytes, descVanished, descStayed, descOwnRead,
	} {
		ch <- d
	}
	peers.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	states := map[onpath.InstanceState]int{
		onpath.InstanceStarting: 0, onpath.InstanceReady: 0, onpath.InstanceUnready: 0, onpath.InstanceFailed: 0,
	}
	names := map[onpath.VportID]string{}
	c.peers.Collect(ch)
	acked, all := c.plans.get().acked, c.instances.Facts()
	for _, f := range all {
		states[f.State]++
		for _, v := range f.Vports() {
			names[v] = f.Name()
		}
		if !f.Leaving {
			ch <- prometheus.MustNewConstMetric(descRestarts, prometheus.CounterValue, float64(f.Restarts), f.Plan.Tenant, f.Plan.Name)
		}
	}
	for s, n := range states {
		ch <- prometheus.MustNewConstMetric(descInstances, prometheus.GaugeValue, float64(n), string(s))
	}
	ch <- prometheus.MustNewConstMetric(descPlan, prometheus.GaugeValue, float64(acked))

	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	counters, err := countersOf(ctx, c.part.Datapath, c.punts)
	if err != nil {
		c.part.Log.Warn("cannot read the data path's counters", "err", err)
		return
	}
	ch <- prometheus.MustNewConstMetric(descFlows, prometheus.GaugeValue, float64(counters.Flows))
	ch <- prometheus.MustNewConstMetric(descLearned, prometheus.CounterValue, float64(counters.Learned))
	ch <- prometheus.MustNewConstMetric(descEncap, prometheus.CounterValue, float64(counters.Encapsulated))
	for tenant, t := range counters.Tenants {
		for state, n := range map[string]uint64{"established": t.Established, "pending": t.Pending, "caused": t.Caused} {
			ch <- prometheus.MustNewConstMetric(descHeld, prometheus.GaugeValue, float64(n), tenant, state)
		}
		ch <- prometheus.MustNewConstMetric(descHeldMost, prometheus.GaugeValue, float64(t.Limit), tenant)
		ch <- prometheus.MustNewConstMetric(descDeferred, prometheus.CounterValue, float64(t.Deferred), tenant)
		ch <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(t.Refused), tenant)
		if t.NewLimit != 0 {
			ch <- prometheus.MustNewConstMetric(descNewLimit, prometheus.GaugeValue, float64(t.NewLimit), tenant)
		}
	}
	for name, u := range counters.Uplinks {
		ch <- prometheus.MustNewConstMetric(descUplink, prometheus.CounterValue, float64(u.Carried), name, "fast")
		ch <- prometheus.MustNewConstMetric(descUplink, prometheus.CounterValue, float64(u.PassedOn), name, "ordinary")
	}
	c.collectFunctions(ch, counters.Functions, names, all)
	c.collectModules(ch, all)
	c.collectRelays(ch, all)
	for id, v := range counters.Vports {
		vport, name := strconv.FormatUint(uint64(id), 10), names[id]
		for _, d := range []struct {
			direction string
			tally     onpath.Tally
		}{{"in", v.In}, {"out", v.Out}} {
			ch <- prometheus.MustNewConstMetric(descPackets, prometheus.CounterValue, float64(d.tally.Packets), vport, name, d.direction)
			ch <- prometheus.MustNewConstMetric(descBytes, prometheus.CounterValue, float64(d.tally.Bytes), vport, name, d.direction)
		}
		if d := v.Device; d != nil {
			ch <- prometheus.MustNewConstMetric(descDevice, prometheus.CounterValue, float64(d.In), vport, name, "in")
			ch <- prometheus.MustNewConstMetric(descDevice, prometheus.CounterValue, float64(d.Out), vport, name, "out")
		}
		if v.NotKept > 0 {
			ch <- prometheus.MustNewConstMetric(descNotKept, prometheus.CounterValue, float64(v.NotKept), vport, name)
		}
		for reason, n := range v.Dropped {
			ch <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(n), vport, name, string(reason))
		}
	}
}

// countersOf are the data path's, with what was lost here after it.
func countersOf(ctx context.Context, d onpath.Datapath, punts *punt.Port) (*onpath.Counters, error) {
	c, err := d.Counters(ctx)
	if err == nil {
		punts.AddLost(c)
	}
	return c, err
}
