package node

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// The conditions that a node reports. An uplink's are onpath.ConditionUplink and
// ConditionFastPath with its name.
const (
	ConditionUnderlay   = "Underlay"
	ConditionForwarding = "Forwarding"
	ConditionFastPath   = "FastPath/"
	ConditionGuard      = "Guard" // only if it is false
)

// machine looks at the machine again and again.
type machine struct {
	part    *base.Part
	a       *Agent
	inspect chan struct{} // look again
	looking sync.Mutex    // serialises look

	mu   sync.Mutex
	seen sighting // last
}

func newMachine(p *base.Part, a *Agent) *machine {
	return &machine{part: p, a: a, inspect: make(chan struct{}, 1)}
}

// current is what was last seen; nobody writes to it.
func (m *machine) current() sighting {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// sighting is what was seen of the machine.
type sighting struct {
	kernel         string
	capacity       onpath.Resources
	underlayMTU    int // bytes
	underlayDevice string
	addresses      []netip.Addr
	resolvers      []netip.Addr // name servers
	askFrom        onpath.PortRange
	conditions     []onpath.Condition
	refused        map[string]string // uplinks left out of the configuration: name → reason word
	renamed        map[string]string // uplinks whose device has another name now: name → device
	devices        watched
	firewallErr    string // why the host's firewall could not be read whole
}

// defaultNetwork is assumed where no device tells its speed.
const defaultNetwork = onpath.Rate(10e9)

// lookEvery is the longest time between two looks at the machine; changes of
// devices are told by the kernel.
const lookEvery = 10 * time.Second

// watch looks at the machine whenever a device changes.
func (m *machine) watch(ctx context.Context) {
	m.part.Go(func(ctx context.Context) {
		for m.part.Clock.Sleep(ctx, lookEvery) == nil {
			base.Kick(m.inspect)
		}
	})
	m.part.Go(m.watchLinks)
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.inspect:
			m.look()
		}
	}
}

// look inspects the machine, and puts the configuration in force again if the
// set of usable uplinks is another one, or a device is.
func (m *machine) look() {
	m.looking.Lock()
	defer m.looking.Unlock()
	now, err := m.inspectAll(m.a.spec())
	if err != nil {
		m.part.Log.Error("cannot inspect the machine", "err", err)
		return
	}
	old := m.current()
	if old.capacity != (onpath.Resources{}) {
		now.capacity.Disk = old.capacity.Disk // what is free now includes what instances took
	}
	now.conditions = keepSince(old.conditions, now.conditions, m.part.Clock.Now())
	m.mu.Lock()
	m.seen = now
	m.mu.Unlock()
	if now.firewallErr != "" && now.firewallErr != old.firewallErr {
		m.part.Log.Warn("cannot read the host's firewall; uplinks are attached in spite of it", "err", now.firewallErr)
	}
	if now.reports(old) {
		base.Kick(m.part.ReportDue)
		m.tellConditions(old.conditions, now.conditions)
	}
	devices := now.devices.changed(old.devices)
	if len(devices) > 0 {
		m.part.Log.Info("devices are others than before; the data path is attached again", "devices", devices)
	}
	switch {
	case base.Hash(old.refused) != base.Hash(now.refused) || base.Hash(old.renamed) != base.Hash(now.renamed) || len(devices) > 0:
		m.a.apply.kick(true)
	case !slices.Equal(old.addresses, now.addresses), !slices.Equal(old.resolvers, now.resolvers),
		old.askFrom != now.askFrom: // exemptions name them
		m.a.apply.kick(false)
	}
}

// reports tells whether a report would say another thing than before.
func (s sighting) reports(old sighting) bool {
	return base.Hash(old.conditions) != base.Hash(s.conditions) || old.underlayMTU != s.underlayMTU || old.underlayDevice != s.underlayDevice ||
		!slices.Equal(old.addresses, s.addresses) || old.capacity != s.capacity
}

// tellConditions makes events of what got worse, and of what is good again.
func (m *machine) tellConditions(old, now []onpath.Condition) {
	before := map[string]onpath.Condition{}
	for _, c := range old {
		before[c.Type] = c
	}
	about := m.part.About()
	for _, c := range now {
		was, known := before[c.Type]
		switch {
		case c.Status == onpath.False && (was.Status != onpath.False || was.Reason != c.Reason):
			m.part.Tell(onpath.NodeEvent{About: about, Reason: c.Reason, Message: c.Message, Warning: true})
		case known && c.Status == onpath.True && was.Status == onpath.False:
			m.part.Tell(onpath.NodeEvent{About: about, Reason: "Recovered", Message: c.Type + " is as it should be again"})
		}
	}
}

// spec is the node as the plan knows it, else as its own file says.
func (a *Agent) spec() onpath.NodeSpec {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.opt.Spec
	if a.plan != nil {
		if a.plan.Datapath.Underlay.Address.IsValid() {
			s.Underlay = a.plan.Datapath.Underlay
		}
		s.Uplinks = nil
		if e := a.plan.Datapath.Edge; e != nil {
			s.Uplinks = e.Uplinks
		}
	}
	return s
}

func (m *machine) inspectAll(spec onpath.NodeSpec) (sighting, error) {
	h, err := wiring.Open(m.part.NetNS)
	if err != nil {
		return sighting{}, err
	}
	defer h.Close()
	now := sighting{kernel: kernelRelease(), refused: map[string]string{}, renamed: map[string]string{}}
	var rate onpath.Rate
	under, c := underlay(h, spec.Underlay.Address)
	now.conditions = append(now.conditions, c)
	if under != nil {
		now.underlayMTU, now.underlayDevice = under.Attrs().MTU, under.Attrs().Name
		rate = m.speed(under.Attrs().Name)
	}
	now.devices = watchedOf(h, spec, under)
	now.resolvers, now.askFrom = resolversOf(resolverFiles), askFrom(m.part.NetNS)
	if now.addresses, err = addressesOf(h); err != nil {
		return sighting{}, err
	}
	fw, err := inspectFirewall(m.part.NetNS)
	if err != nil {
		now.firewallErr = err.Error()
	}
	traffic := transitOf(m.a.wantedPlan(), networksBehind(h, spec.Uplinks))
	var uplinkRate onpath.Rate
	vrfs := map[string]string{}
	for _, u := range spec.Uplinks {
		was, held := m.a.held.get(u)
		l := deviceOf(h, u, was, spec.Uplinks)
		c := uplinkCondition(l, u, fw, traffic, held)
		if l != nil && l.Attrs().Name != u.Device {
			now.renamed[u.Name] = l.Attrs().Name
		}
		if l == nil || len(onpath.Unsteered([]onpath.Condition{c})) > 0 {
			now.refused[u.Name] = c.Reason
		}
		if l != nil && needsForwarding(u) {
			vrfs[u.Name] = vrfOf(h, l)
		}
		if s := m.speed(u.Device); s != 0 && (uplinkRate == 0 || s < uplinkRate) {
			uplinkRate = s
		}
		now.conditions = append(now.conditions, c)
	}
	now.refuseVRFs(spec.Uplinks, vrfs)
	now.refuseTogether(spec.Uplinks, func(u onpath.Uplink) bool { _, held := m.a.held.get(u); return held })
	for _, u := range spec.Uplinks {
		if _, held := m.a.held.get(u); held {
			now.hold(u)
		}
	}
	now.conditions = append(now.conditions, m.fastConditions(spec.Uplinks)...)
	if uplinkRate != 0 {
		rate = uplinkRate
	}
	if slices.ContainsFunc(spec.Uplinks, needsForwarding) {
		now.conditions = append(now.conditions, m.forwarding())
	}
	if err := m.a.guard.check(); err != nil {
		now.conditions = append(now.conditions, onpath.Condition{Type: ConditionGuard, Status: onpath.False, Reason: "CannotSet",
			Message: "what strict chains select would pass by a device that is made anew while the agent does not run: " + err.Error()})
	}
	now.conditions = append(now.conditions, m.a.runtimeCondition())
	now.capacity = m.capacityOf(rate)
	return now, nil
}

// refuseVRFs leaves out uplinks between which the kernel routes if their devices are not
// all in one VRF: the data path looks up every route as for the first one's device. vrfs
// are those of the devices that are there.
func (s *sighting) refuseVRFs(uplinks []onpath.Uplink, vrfs map[string]string) {
	differs := func(u onpath.Uplink) int {
		vrf, there := vrfs[u.Name]
		return slices.IndexFunc(uplinks, func(o onpath.Uplink) bool {
			other, known := vrfs[o.Name]
			return there && known && other != vrf
		})
	}
	for _, u := range uplinks {
		if other := differs(u); other >= 0 && s.refused[u.Name] == "" {
			o := uplinks[other]
			s.refuse(u, onpath.ReasonOtherVRF, fmt.Sprintf("uplink %s is not attached: %s, but %s, "+
				"and packets would be routed by the wrong table. Name uplinks of one VRF",
				u.Name, inVRF(u, vrfs[u.Name]), inVRF(o, vrfs[o.Name])))
		}
	}
}

func inVRF(u onpath.Uplink, vrf string) string {
	if vrf == "" {
		return fmt.Sprintf("its device %s is in no VRF", u.Device)
	}
	return fmt.Sprintf("its device %s is in VRF %s", u.Device, vrf)
}

// refuseTogether leaves out all uplinks between which the kernel routes if one of them is
// not to be steered: steering one direction only would let a function see half of each flow.
// A missing device is no such case: nothing passes it. Nor are those left out at which
// chains are in force: what strict chains select must not pass there unfiltered.
func (s *sighting) refuseTogether(uplinks []onpath.Uplink, held func(onpath.Uplink) bool) {
	first := slices.IndexFunc(uplinks, func(u onpath.Uplink) bool {
		why := s.refused[u.Name]
		return needsForwarding(u) && why != "" && why != onpath.ReasonDeviceMissing
	})
	if first < 0 {
		return
	}
	for _, u := range uplinks {
		if needsForwarding(u) && s.refused[u.Name] == "" && !held(u) {
			s.refuse(u, onpath.ReasonOtherUplink, fmt.Sprintf("uplink %s is not attached, because uplink %s is not: "+
				"one without the other would steer one direction only", u.Name, uplinks[first].Name))
		}
	}
}

// hold keeps an uplink at which chains are in force: in another VRF it is steered all the
// same, and what cannot be attached to is closed by the guard.
func (s *sighting) hold(u onpath.Uplink) {
	steered := s.refused[u.Name] == onpath.ReasonOtherVRF
	for i := range s.conditions {
		c := &s.conditions[i]
		switch {
		case c.Type != onpath.ConditionUplink+u.Name || s.refused[u.Name] == "":
		case steered:
			c.Message += ". It is steered all the same, by the wrong table perhaps, because chains were in force before"
		case needsForwarding(u):
			c.Message += ". What chains with none: drop select is dropped where it comes in by a device of that name, " +
				"because they were in force before"
		}
	}
	if steered {
		delete(s.refused, u.Name)
	}
}

// refuse leaves an uplink out, and says why.
func (s *sighting) refuse(u onpath.Uplink, reason, message string) {
	s.refused[u.Name] = reason
	for i := range s.conditions {
		if c := &s.conditions[i]; c.Type == onpath.ConditionUplink+u.Name {
			c.Status, c.Reason, c.Message = onpath.False, reason, message
		}
	}
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// capacityOf is the machine's, less what the operator's file says otherwise.
func (m *machine) capacityOf(network onpath.Rate) onpath.Resources {
	if network == 0 {
		network = defaultNetwork
	}
	r := onpath.Resources{CPU: onpath.CPU(runtime.NumCPU() * 1000), Network: network}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		r.Memory = onpath.Size(uint64(si.Totalram) * uint64(si.Unit))
	}
	var fs unix.Statfs_t
	if unix.Statfs(string(m.part.Dir), &fs) == nil {
		const gi = 1 << 30
		r.Disk = onpath.Size(fs.Bavail*uint64(fs.Bsize)) / gi * gi
	}
	c := m.a.opt.Spec.Capacity
	if c.CPU != 0 {
		r.CPU = c.CPU
	}
	if c.Memory != 0 {
		r.Memory = c.Memory
	}
	if c.Disk != 0 {
		r.Disk = c.Disk
	}
	if c.Network != 0 {
		r.Network = c.Network
	}
	return r
}

func (a *Agent) runtimeCondition() onpath.Condition {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := onpath.Condition{Type: onpath.ConditionRuntime, Status: onpath.True}
	if d := a.drivers[onpath.ContainerFunction]; d == nil {
		c.Status, c.Reason = onpath.False, onpath.ReasonRuntimeMissing
		c.Message = "this node runs no container functions: no container runtime is set up"
	} else if d.err != nil {
		c.Status, c.Reason = onpath.False, onpath.ReasonRuntimeDown
		c.Message = "the container runtime does not answer: " + d.err.Error()
	}
	return c
}
