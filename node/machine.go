package node

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// The conditions that a node reports. An uplink's are ConditionUplink and
// ConditionFastPath with its name.
const (
	ConditionUnderlay   = "Underlay"
	ConditionForwarding = "Forwarding"
	ConditionRuntime    = "Runtime"
	ConditionUplink     = "Uplink/"
	ConditionFastPath   = "FastPath/"
)

// machine is what was last seen of the machine.
type machine struct {
	kernel      string
	capacity    onpath.Resources
	underlayMTU int // bytes
	addresses   []netip.Addr
	conditions  []onpath.Condition
	refused     map[string]string // uplinks left out of the configuration: name → reason word
	devices     watched
	firewallErr string // why the host's firewall could not be read whole
}

// defaultNetwork is assumed where no device tells its speed.
const defaultNetwork = onpath.Rate(10e9)

// lookEvery is the longest time between two looks at the machine; changes of
// devices are told by the kernel.
const lookEvery = 10 * time.Second

// watchMachine looks at the machine whenever a device changes.
func (a *Agent) watchMachine(ctx context.Context) {
	a.goDo(func(ctx context.Context) {
		for a.clock.Sleep(ctx, lookEvery) == nil {
			kick(a.inspect)
		}
	})
	a.goDo(a.watchLinks)
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.inspect:
			a.look()
		}
	}
}

// look inspects the machine, and puts the configuration in force again if the
// set of usable uplinks is another one, or a device is.
func (a *Agent) look() {
	a.looking.Lock()
	defer a.looking.Unlock()
	spec := a.spec()
	m, err := a.inspectMachine(spec)
	if err != nil {
		a.log.Error("cannot inspect the machine", "err", err)
		return
	}
	a.mu.Lock()
	old := a.machine
	if old.capacity != (onpath.Resources{}) {
		m.capacity.Disk = old.capacity.Disk // what is free now includes what instances took
	}
	m.conditions = keepSince(old.conditions, m.conditions, a.clock.Now())
	changed := hashOf(old.conditions) != hashOf(m.conditions) || old.underlayMTU != m.underlayMTU || !slices.Equal(old.addresses, m.addresses) || old.capacity != m.capacity
	uplinks := hashOf(old.refused) != hashOf(m.refused)
	devices := m.devices.changed(old.devices)
	a.machine = m
	a.mu.Unlock()
	if m.firewallErr != "" && m.firewallErr != old.firewallErr {
		a.log.Warn("cannot read the host's firewall; uplinks are attached in spite of it", "err", m.firewallErr)
	}
	if changed {
		kick(a.report)
		a.tellConditions(old.conditions, m.conditions)
	}
	if len(devices) > 0 {
		a.log.Info("devices are others than before; the data path is attached again", "devices", devices)
	}
	switch {
	case uplinks || len(devices) > 0:
		a.apply.kick(true)
	case !slices.Equal(old.addresses, m.addresses): // exempt names them
		a.apply.kick(false)
	}
}

// tellConditions makes events of what got worse, and of what is good again.
func (a *Agent) tellConditions(old, now []onpath.Condition) {
	before := map[string]onpath.Condition{}
	for _, c := range old {
		before[c.Type] = c
	}
	about := a.about()
	for _, c := range now {
		was, known := before[c.Type]
		switch {
		case c.Status == onpath.False && (was.Status != onpath.False || was.Reason != c.Reason):
			a.tell(onpath.NodeEvent{About: about, Reason: c.Reason, Message: c.Message, Warning: true})
		case known && c.Status == onpath.True && was.Status == onpath.False:
			a.tell(onpath.NodeEvent{About: about, Reason: "Recovered", Message: c.Type + " is as it should be again"})
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

func (a *Agent) inspectMachine(spec onpath.NodeSpec) (machine, error) {
	h, err := handle(a.opt.NetNS)
	if err != nil {
		return machine{}, err
	}
	defer h.Close()
	m := machine{kernel: kernelRelease(), refused: map[string]string{}}
	var rate onpath.Rate
	under, c := underlay(h, spec.Underlay.Address)
	m.conditions = append(m.conditions, c)
	if under != nil {
		m.underlayMTU = under.Attrs().MTU
		rate = a.speed(under.Attrs().Name)
	}
	m.devices = watchedOf(h, spec, under)
	if m.addresses, err = addressesOf(h); err != nil {
		return machine{}, err
	}
	fw, err := inspectFirewall(a.opt.NetNS)
	if err != nil {
		m.firewallErr = err.Error()
	}
	var uplinkRate onpath.Rate
	for _, u := range spec.Uplinks {
		c := uplinkCondition(h, u, fw)
		if c.Status == onpath.False && c.Reason != "Down" {
			m.refused[u.Name] = c.Reason
		}
		if s := a.speed(u.Device); s != 0 && (uplinkRate == 0 || s < uplinkRate) {
			uplinkRate = s
		}
		m.conditions = append(m.conditions, c)
	}
	m.refuseTogether(spec.Uplinks)
	m.conditions = append(m.conditions, a.fastConditions(spec.Uplinks)...)
	if uplinkRate != 0 {
		rate = uplinkRate
	}
	if slices.ContainsFunc(spec.Uplinks, needsForwarding) {
		m.conditions = append(m.conditions, a.forwarding())
	}
	m.conditions = append(m.conditions, a.runtimeConditions()...)
	m.capacity = a.capacity(rate)
	return m, nil
}

// refuseTogether leaves out all uplinks between which the kernel routes if the
// host's firewall forbids one of them: steering one direction only would let a
// function see half of each flow.
func (m *machine) refuseTogether(uplinks []onpath.Uplink) {
	first := slices.IndexFunc(uplinks, func(u onpath.Uplink) bool { return m.refused[u.Name] == "HostFirewall" })
	if first < 0 {
		return
	}
	for _, u := range uplinks {
		if !needsForwarding(u) || m.refused[u.Name] != "" {
			continue
		}
		m.refused[u.Name] = "OtherUplink"
		for i := range m.conditions {
			if c := &m.conditions[i]; c.Type == ConditionUplink+u.Name {
				c.Status, c.Reason = onpath.False, "OtherUplink"
				c.Message = fmt.Sprintf("uplink %s is not attached, because uplink %s is not: one without the other would steer one direction only", u.Name, uplinks[first].Name)
			}
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

// capacity is the machine's, less what the operator's file says otherwise.
func (a *Agent) capacity(network onpath.Rate) onpath.Resources {
	if network == 0 {
		network = defaultNetwork
	}
	r := onpath.Resources{CPU: onpath.CPU(runtime.NumCPU() * 1000), Network: network}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		r.Memory = onpath.Size(uint64(si.Totalram) * uint64(si.Unit))
	}
	var fs unix.Statfs_t
	if unix.Statfs(a.opt.StateDir, &fs) == nil {
		const gi = 1 << 30
		r.Disk = onpath.Size(fs.Bavail*uint64(fs.Bsize)) / gi * gi
	}
	c := a.opt.Spec.Capacity
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

func (a *Agent) runtimeConditions() []onpath.Condition {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := onpath.Condition{Type: ConditionRuntime, Status: onpath.True}
	if d := a.drivers[onpath.ContainerFunction]; d == nil {
		c.Status, c.Reason = onpath.False, "Missing"
		c.Message = "this node runs no container functions: no container runtime is set up"
	} else if d.err != nil {
		c.Status, c.Reason = onpath.False, "Unavailable"
		c.Message = "the container runtime does not answer: " + d.err.Error()
	}
	return []onpath.Condition{c}
}
