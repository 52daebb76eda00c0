package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// The conditions that a node reports. An uplink's is ConditionUplink + its name.
const (
	ConditionUnderlay   = "Underlay"
	ConditionForwarding = "Forwarding"
	ConditionRuntime    = "Runtime"
	ConditionUplink     = "Uplink/"
)

// machine is what was last seen of the machine.
type machine struct {
	kernel      string
	capacity    onpath.Resources
	underlayMTU int // bytes
	conditions  []onpath.Condition
	refused     map[string]string // uplinks left out of the configuration: name → reason word
	firewallErr string            // why the host's firewall could not be read whole
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

// watchLinks follows the devices of the agent's namespace. A device of an
// instance that vanishes is made again; an uplink that comes is attached.
func (a *Agent) watchLinks(ctx context.Context) {
	for ctx.Err() == nil {
		if err := a.followLinks(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("cannot follow the network devices; trying again", "err", err)
			_ = a.clock.Sleep(ctx, time.Second)
		}
	}
}

func (a *Agent) followLinks(ctx context.Context) error {
	ns := netns.None()
	if a.opt.NetNS != "" {
		f, err := netns.GetFromPath(a.opt.NetNS)
		if err != nil {
			return err
		}
		defer f.Close()
		ns = f
	}
	updates, done := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	failed := make(chan error, 1)
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		Namespace: &ns,
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		close(done)
		return err
	}
	defer func() {
		close(done)
		for range updates { // until the library's goroutine has ended
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case u, ok := <-updates:
			if !ok {
				return errors.New("the kernel's notifications ended")
			}
			a.linkChanged(u)
		}
	}
}

func (a *Agent) linkChanged(u netlink.LinkUpdate) {
	if !strings.HasPrefix(u.Attrs().Alias, aliasPrefix) {
		kick(a.inspect)
		return
	}
	if u.Header.Type == unix.RTM_DELLINK {
		id, ok := strings.CutPrefix(u.Attrs().Alias, a.wirer.alias(""))
		if !ok {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if in := a.instances[id]; in != nil && !in.leaving {
			kick(in.changed)
		}
	}
}

// look inspects the machine, and puts the configuration in force again if the
// set of usable uplinks is another one.
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
	changed := hashOf(old.conditions) != hashOf(m.conditions) || old.underlayMTU != m.underlayMTU || old.capacity != m.capacity
	uplinks := hashOf(old.refused) != hashOf(m.refused)
	a.machine = m
	a.mu.Unlock()
	if m.firewallErr != "" && m.firewallErr != old.firewallErr {
		a.log.Warn("cannot read the host's firewall; uplinks are attached in spite of it", "err", m.firewallErr)
	}
	if changed {
		kick(a.report)
	}
	if uplinks {
		a.apply.kick(true)
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

// needsForwarding tells the uplinks between which the kernel routes.
func needsForwarding(u onpath.Uplink) bool {
	return u.Attach == onpath.AttachRouter || u.Attach == onpath.AttachArm
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

// underlay finds the device with the underlay address.
func underlay(h *netlink.Handle, addr netip.Addr) (netlink.Link, onpath.Condition) {
	c := onpath.Condition{Type: ConditionUnderlay, Status: onpath.True}
	if !addr.IsValid() {
		c.Status, c.Reason = onpath.Unknown, "NoAddress"
		c.Message = "the node has no underlay address, which only a node alone can do without; set spec.underlay.address"
		return nil, c
	}
	all, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err == nil {
		for _, have := range all {
			if prefixOf(have.IPNet).Addr() != addr {
				continue
			}
			if l, err := h.LinkByIndex(have.LinkIndex); err == nil {
				c.Message = fmt.Sprintf("%s is on %s, MTU %d", addr, l.Attrs().Name, l.Attrs().MTU)
				return l, c
			}
		}
	}
	c.Status, c.Reason = onpath.False, "AddressMissing"
	c.Message = fmt.Sprintf("no device of this machine has the underlay address %s; give it to one, or correct spec.underlay.address", addr)
	return nil, c
}

// uplinkCondition says whether an uplink is usable. Status false with another
// reason than Down keeps it out of the configuration.
func uplinkCondition(h *netlink.Handle, u onpath.Uplink, fw firewall) onpath.Condition {
	c := onpath.Condition{Type: ConditionUplink + u.Name, Status: onpath.False}
	l, err := h.LinkByName(u.Device)
	switch {
	case err != nil:
		c.Reason = "DeviceMissing"
		c.Message = fmt.Sprintf("uplink %s: there is no device %s on this machine", u.Name, u.Device)
		return c
	case l.Attrs().Flags&unix.IFF_UP == 0:
		c.Reason = "Down"
		c.Message = fmt.Sprintf("uplink %s: device %s is down; set it up (ip link set %s up)", u.Name, u.Device, u.Device)
		return c
	case l.Attrs().OperState == netlink.OperDown || l.Attrs().OperState == netlink.OperLowerLayerDown:
		c.Reason = "Down"
		c.Message = fmt.Sprintf("uplink %s: device %s has no carrier", u.Name, u.Device)
		return c
	}
	if why := fw.objection(u.Device); needsForwarding(u) && why != "" {
		if !u.BypassHostFirewall {
			c.Reason = "HostFirewall"
			c.Message = fmt.Sprintf("uplink %s is not attached: %s, and steered packets would pass it by. Say bypassHostFirewall: true on the uplink if that is meant", u.Name, why)
			return c
		}
		c.Message = fmt.Sprintf("%s; steered packets pass it by, as bypassHostFirewall says", why)
	}
	c.Status = onpath.True
	return c
}

// forwarding says whether the kernel routes between the uplinks, and turns it
// on if it may.
func (a *Agent) forwarding() onpath.Condition {
	c := onpath.Condition{Type: ConditionForwarding, Status: onpath.True}
	var off []string
	err := netnsrun.Do(a.opt.NetNS, func() error {
		for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
			got, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(key, ".", "/"))
			if err != nil || strings.TrimSpace(string(got)) != "0" {
				continue // on, or a kernel without it
			}
			if a.opt.SetForwarding {
				if err := (sysctl{key, "1"}).set(); err != nil {
					return err
				}
				a.log.Info("turned forwarding on", "sysctl", key)
				continue
			}
			off = append(off, key+"=1")
		}
		return nil
	})
	switch {
	case err != nil:
		c.Status, c.Reason, c.Message = onpath.False, "CannotSet", err.Error()
	case len(off) > 0:
		c.Status, c.Reason = onpath.False, "Off"
		c.Message = "this machine does not route between its uplinks; run sysctl -w " + strings.Join(off, " ")
	}
	return c
}

func (a *Agent) runtimeConditions() []onpath.Condition {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := onpath.Condition{Type: ConditionRuntime, Status: onpath.True}
	if _, ok := a.opt.Runtimes[KindContainer]; !ok {
		c.Status, c.Reason = onpath.False, "Missing"
		c.Message = "this node runs no container functions: no container runtime is set up"
	} else if err := a.runtimes[KindContainer]; err != nil {
		c.Status, c.Reason = onpath.False, "Unavailable"
		c.Message = "the container runtime does not answer: " + err.Error()
	}
	return []onpath.Condition{c}
}

// speed asks a device for its bit rate; 0 if it does not know.
func (a *Agent) speed(device string) (rate onpath.Rate) {
	_ = netnsrun.Do(a.opt.NetNS, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		rate = ethtoolSpeed(fd, device)
		return nil
	})
	return rate
}

// ethtoolSpeed is ETHTOOL_GSET of linux/ethtool.h, which every driver answers
// that knows a speed.
func ethtoolSpeed(fd int, device string) onpath.Rate {
	var cmd struct {
		cmd, supported, advertising uint32
		speed                       uint16
		duplex, port, phy, trans    uint8
		autoneg, mdio               uint8
		maxtx, maxrx                uint32
		speedHi                     uint16
		_                           [10]byte
	}
	cmd.cmd = unix.ETHTOOL_GSET
	var ifr struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	if copy(ifr.name[:unix.IFNAMSIZ-1], device) < len(device) {
		return 0
	}
	ifr.data = unsafe.Pointer(&cmd)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr)))
	mbits := uint32(cmd.speedHi)<<16 | uint32(cmd.speed)
	if errno != 0 || mbits == 0 || mbits == 1<<32-1 || mbits == 1<<16-1 {
		return 0
	}
	return onpath.Rate(mbits) * 1e6
}
