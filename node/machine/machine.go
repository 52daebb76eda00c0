// Package machine sees the machine on which an agent runs: its devices, uplinks, firewall
// and capacity. It refuses uplinks that must not be steered, exempts what the node itself
// says, and keeps what strict chains select from passing where nothing steers (guard.go).
package machine

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

// Machine looks at the machine again and again. It knows the guard, and at which uplinks
// chains are in force.
type Machine struct {
	part    *base.Part
	rounds  *base.Rounds
	opt     Options
	inspect chan struct{} // look again
	// vanished are the instances of which a device has gone.
	vanished chan string
	looking  sync.Mutex // serialises look
	held     *held
	guard    *guard

	mu      sync.Mutex
	seen    Sighting          // last
	plan    *onpath.NodePlan  // nil: there is none yet
	runtime *onpath.Condition // nil: nothing is known
	routes  bool              // the configuration in force is at uplinks between which the kernel routes
}

// Options are what the operator says of the machine.
type Options struct {
	Spec onpath.NodeSpec
	// SetForwarding lets IP forwarding be turned on where a routing uplink needs it.
	SetForwarding bool
}

// New makes one.
func New(p *base.Part, r *base.Rounds, o Options) *Machine {
	return &Machine{part: p, rounds: r, opt: o, inspect: make(chan struct{}, 1), vanished: make(chan string, 64),
		held: newHeld(p.Dir), guard: &guard{netNS: p.NetNS}}
}

// Gone gives the instances of which a device has gone.
func (m *Machine) Gone() <-chan string { return m.vanished }

// LookSoon has the machine looked at again.
func (m *Machine) LookSoon() { base.Kick(m.inspect) }

// Current is what was last seen; nobody writes to it.
func (m *Machine) Current() Sighting {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// Follow takes up a plan. It reports whether the machine must be looked at before the plan
// is put in force: uplinks are checked before they are attached.
func (m *Machine) Follow(p *onpath.NodePlan) (look bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := specOf(m.opt.Spec, m.plan)
	m.plan = p
	now := specOf(m.opt.Spec, p)
	return len(now.Uplinks) > 0 || base.Hash(before) != base.Hash(now)
}

// Spec is the node as the plan knows it, else as its own file says.
func (m *Machine) Spec() onpath.NodeSpec {
	m.mu.Lock()
	defer m.mu.Unlock()
	return specOf(m.opt.Spec, m.plan)
}

func specOf(s onpath.NodeSpec, p *onpath.NodePlan) onpath.NodeSpec {
	if p == nil {
		return s
	}
	if p.Datapath.Underlay.Address.IsValid() {
		s.Underlay = p.Datapath.Underlay
	}
	s.Uplinks = nil
	if e := p.Datapath.Edge; e != nil {
		s.Uplinks = e.Uplinks
	}
	return s
}

// SetRuntime takes up how the container runtime is.
func (m *Machine) SetRuntime(c onpath.Condition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runtime = &c
}

// Restore takes up what was in force when an earlier agent ended.
func (m *Machine) Restore(inForce *onpath.NodePlan) {
	if names := m.held.restore(inForce); len(names) > 0 {
		m.part.Log.Warn("where chains were in force is not known; all uplinks of the plan that was in force stay steered", "uplinks", names)
	}
}

// Devices are the indexes of the devices of an edge, by uplink.
func (m *Machine) Devices(e *onpath.Edge) map[string]int { return indexesOf(m.part.NetNS, e) }

// Hold takes up that the plan is in force, as c, and has the guard know. A device that was
// made anew meanwhile counts as none: before are those from before c was applied.
func (m *Machine) Hold(plan *onpath.NodePlan, c *onpath.DatapathConfig, before map[string]int) {
	now := m.Devices(c.Edge)
	for name, index := range now {
		if before[name] != index {
			now[name] = 0
		}
	}
	all, err := m.held.note(plan, c, now)
	if err != nil {
		m.part.Log.Error("cannot save at which uplinks chains are in force", "err", err)
	}
	routes := c.Edge != nil && slices.ContainsFunc(c.Edge.Uplinks, needsForwarding)
	m.mu.Lock()
	look := routes && !m.routes
	m.routes = routes
	m.mu.Unlock()
	if err := m.guard.set(guardRulesOf(c, plan.Datapath.Edge, all)); err != nil {
		m.part.Log.Error("what strict chains select cannot be dropped where no program sees it", "err", err)
		look = true
	}
	if look {
		base.Kick(m.inspect)
	}
}

// Sighting is what was seen of the machine.
type Sighting struct {
	Kernel         string
	Capacity       onpath.Resources
	UnderlayMTU    int // bytes
	UnderlayDevice string
	Addresses      []netip.Addr
	resolvers      []netip.Addr // name servers
	askFrom        onpath.PortRange
	Conditions     []onpath.Condition
	Refused        map[string]string // uplinks left out of the configuration: name → reason word
	Renamed        map[string]string // uplinks whose device has another name now: name → device
	devices        watched
	firewallErr    string // why the host's firewall could not be read whole
}

// defaultNetwork is assumed where no device tells its speed.
const defaultNetwork = onpath.Rate(10e9)

// lookEvery is the longest time between two looks at the machine; changes of
// devices are told by the kernel.
const lookEvery = 10 * time.Second

// Watch looks at the machine whenever a device changes.
func (m *Machine) Watch(ctx context.Context) {
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
			m.Look()
		}
	}
}

// Look inspects the machine, and puts the configuration in force again if the
// set of usable uplinks is another one, or a device is.
func (m *Machine) Look() {
	m.looking.Lock()
	defer m.looking.Unlock()
	now, err := m.inspectAll()
	if err != nil {
		m.part.Log.Error("cannot inspect the machine", "err", err)
		return
	}
	old := m.Current()
	if old.Capacity != (onpath.Resources{}) {
		now.Capacity.Disk = old.Capacity.Disk // what is free now includes what instances took
	}
	now.Conditions = keepSince(old.Conditions, now.Conditions, m.part.Clock.Now())
	m.mu.Lock()
	m.seen = now
	m.mu.Unlock()
	if now.firewallErr != "" && now.firewallErr != old.firewallErr {
		m.part.Log.Warn("cannot read the host's firewall; uplinks are attached in spite of it", "err", now.firewallErr)
	}
	if now.reports(old) {
		base.Kick(m.part.ReportDue)
		m.tellConditions(old.Conditions, now.Conditions)
	}
	devices := now.devices.changed(old.devices)
	if len(devices) > 0 {
		m.part.Log.Info("devices are others than before; the data path is attached again", "devices", devices)
	}
	switch {
	case base.Hash(old.Refused) != base.Hash(now.Refused) || base.Hash(old.Renamed) != base.Hash(now.Renamed) || len(devices) > 0:
		m.rounds.Kick(true)
	case !slices.Equal(old.Addresses, now.Addresses), !slices.Equal(old.resolvers, now.resolvers),
		old.askFrom != now.askFrom: // exemptions name them
		m.rounds.Kick(false)
	}
}

// reports tells whether a report would say another thing than before.
func (s Sighting) reports(old Sighting) bool {
	return base.Hash(old.Conditions) != base.Hash(s.Conditions) || old.UnderlayMTU != s.UnderlayMTU ||
		old.UnderlayDevice != s.UnderlayDevice ||
		!slices.Equal(old.Addresses, s.Addresses) || old.Capacity != s.Capacity
}

// tellConditions makes events of what got worse, and of what is good again.
func (m *Machine) tellConditions(old, now []onpath.Condition) {
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

func (m *Machine) inspectAll() (Sighting, error) {
	m.mu.Lock()
	spec, plan, runtime := specOf(m.opt.Spec, m.plan), m.plan, m.runtime
	m.mu.Unlock()
	h, err := wiring.Open(m.part.NetNS)
	if err != nil {
		return Sighting{}, err
	}
	defer h.Close()
	now := Sighting{Kernel: kernelRelease(), Refused: map[string]string{}, Renamed: map[string]string{}}
	var rate onpath.Rate
	under, c := Underlay(h, spec.Underlay.Address)
	now.Conditions = append(now.Conditions, c)
	if under != nil {
		now.UnderlayMTU, now.UnderlayDevice = under.Attrs().MTU, under.Attrs().Name
		rate = m.speed(under.Attrs().Name)
	}
	now.devices = watchedOf(h, spec, under)
	now.resolvers, now.askFrom = resolversOf(resolverFiles), askFrom(m.part.NetNS)
	if now.Addresses, err = addressesOf(h); err != nil {
		return Sighting{}, err
	}
	fw, fwErr := inspectFirewall(m.part.NetNS)
	if fwErr != nil {
		now.firewallErr = fwErr.Error()
	}
	traffic := transitOf(plan, networksBehind(h, spec.Uplinks))
	var uplinkRate onpath.Rate
	vrfs := map[string]string{}
	for _, u := range spec.Uplinks {
		was, held := m.held.get(u)
		l := deviceOf(h, u, was, spec.Uplinks)
		c := uplinkCondition(l, u, fw, traffic, held)
		if l != nil && l.Attrs().Name != u.Device {
			now.Renamed[u.Name] = l.Attrs().Name
		}
		if l == nil || len(onpath.Unsteered([]onpath.Condition{c})) > 0 {
			now.Refused[u.Name] = c.Reason
		}
		if l != nil && needsForwarding(u) {
			vrfs[u.Name] = vrfOf(h, l)
		}
		if s := m.speed(u.Device); s != 0 && (uplinkRate == 0 || s < uplinkRate) {
			uplinkRate = s
		}
		now.Conditions = append(now.Conditions, c)
	}
	now.refuseVRFs(spec.Uplinks, vrfs)
	now.refuseTogether(spec.Uplinks, func(u onpath.Uplink) bool { _, held := m.held.get(u); return held })
	for _, u := range spec.Uplinks {
		if _, held := m.held.get(u); held {
			now.hold(u)
		}
	}
	now.Conditions = append(now.Conditions, m.fastConditions(spec.Uplinks)...)
	if uplinkRate != 0 {
		rate = uplinkRate
	}
	if slices.ContainsFunc(spec.Uplinks, needsForwarding) {
		now.Conditions = append(now.Conditions, m.forwarding())
	}
	if err := m.guard.check(fw.guard, fwErr); err != nil {
		now.Conditions = append(now.Conditions, onpath.Condition{Type: ConditionGuard, Status: onpath.False, Reason: "CannotSet",
			Message: "what strict chains select would pass by a device that is made anew while the agent does not run: " + err.Error()})
	}
	if runtime != nil {
		now.Conditions = append(now.Conditions, *runtime)
	}
	now.Capacity = m.capacityOf(rate)
	return now, nil
}

// refuseVRFs leaves out uplinks between which the kernel routes if their devices are not
// all in one VRF: the data path looks up every route as for the first one's device. vrfs
// are those of the devices that are there.
func (s *Sighting) refuseVRFs(uplinks []onpath.Uplink, vrfs map[string]string) {
	differs := func(u onpath.Uplink) int {
		vrf, there := vrfs[u.Name]
		return slices.IndexFunc(uplinks, func(o onpath.Uplink) bool {
			other, known := vrfs[o.Name]
			return there && known && other != vrf
		})
	}
	for _, u := range uplinks {
		if other := differs(u); other >= 0 && s.Refused[u.Name] == "" {
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
func (s *Sighting) refuseTogether(uplinks []onpath.Uplink, held func(onpath.Uplink) bool) {
	first := slices.IndexFunc(uplinks, func(u onpath.Uplink) bool {
		why := s.Refused[u.Name]
		return needsForwarding(u) && why != "" && why != onpath.ReasonDeviceMissing
	})
	if first < 0 {
		return
	}
	for _, u := range uplinks {
		if needsForwarding(u) && s.Refused[u.Name] == "" && !held(u) {
			s.refuse(u, onpath.ReasonOtherUplink, fmt.Sprintf("uplink %s is not attached, because uplink %s is not: "+
				"one without the other would steer one direction only", u.Name, uplinks[first].Name))
		}
	}
}

// hold keeps an uplink at which chains are in force: in another VRF it is steered all the
// same, and what cannot be attached to is closed by the guard.
func (s *Sighting) hold(u onpath.Uplink) {
	steered := s.Refused[u.Name] == onpath.ReasonOtherVRF
	for i := range s.Conditions {
		c := &s.Conditions[i]
		switch {
		case c.Type != onpath.ConditionUplink+u.Name || s.Refused[u.Name] == "":
		case steered:
			c.Message += ". It is steered all the same, by the wrong table perhaps, because chains were in force before"
		case needsForwarding(u):
			c.Message += ". What chains with none: drop select is dropped where it comes in by a device of that name, " +
				"because they were in force before"
		}
	}
	if steered {
		delete(s.Refused, u.Name)
	}
}

// refuse leaves an uplink out, and says why.
func (s *Sighting) refuse(u onpath.Uplink, reason, message string) {
	s.Refused[u.Name] = reason
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == onpath.ConditionUplink+u.Name {
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
func (m *Machine) capacityOf(network onpath.Rate) onpath.Resources {
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
	c := m.opt.Spec.Capacity
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

// keepSince carries the times of unchanged conditions over to the new ones.
func keepSince(old, now []onpath.Condition, at time.Time) []onpath.Condition {
	for i := range now {
		now[i].Since = at
		for _, o := range old {
			if o.Type == now[i].Type && o.Status == now[i].Status {
				now[i].Since = o.Since
			}
		}
	}
	return now
}
