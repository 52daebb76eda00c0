// Package wiring hangs instances in the network: it makes and removes their namespaces and
// devices, with addresses, routes, kernel settings and queues. It keeps no state but what
// Forwarding says.
package wiring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/userns"
	"github.com/onpath/onpath/node/base"
)

// The next hops of a routed instance: no device has these addresses, permanent
// neighbour entries stand for them.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// Wiring is how one instance hangs in the network.
type Wiring struct {
	ID        string                 `json:"id"`
	Attach    onpath.ContainerAttach `json:"attach"`
	Vport     onpath.VportID         `json:"vport"`
	Back      onpath.VportID         `json:"back,omitempty"`
	Addresses []netip.Prefix         `json:"addresses,omitempty"`
	Serves    []netip.Addr           `json:"serves,omitempty"`
	MTU       int                    `json:"mtu"` // bytes
	Sysctls   map[string]string      `json:"sysctls,omitempty"`
	Originate bool                   `json:"originate,omitempty"` // opens flows, also with others' addresses
	// WholeFrames: nothing behind its devices completes checksums, or cuts packets.
	WholeFrames bool `json:"wholeFrames,omitempty"`
	// Rate in bit/s of IP, in each direction of each device; 0: no limit.
	Rate uint64 `json:"rate,omitempty"`
	// UserNamespace counts when the namespace is made; what runs stays as it is.
	UserNamespace onpath.UserNamespaceRule `json:"-"`
	// Pair is where its partner is; nil: it has none.
	Pair *onpath.Pair `json:"pair,omitempty"`
}

// AttachInline is how an ebpf function hangs in the network: not at all.
const AttachInline onpath.ContainerAttach = "inline"

const defaultMTU = 1500 // bytes, where the plan says nothing

// Of is the wiring of an instance by its plan.
func Of(id string, p onpath.InstancePlan) Wiring {
	w := Wiring{ID: id, Vport: p.Vport, Back: p.Back, Addresses: p.Addresses, Serves: p.Serves, MTU: p.MTU,
		UserNamespace: p.UserNamespace, Pair: p.Pair}
	t := p.Spec.Traits()
	w.Attach, w.Sysctls, w.WholeFrames = t.Attach, t.Sysctls, t.WholeFrames
	w.Originate = p.Spec.Packets == onpath.PacketsOriginate
	if t.Inline {
		w.Attach = AttachInline
	}
	if w.MTU == 0 {
		w.MTU = defaultMTU
	}
	w.Rate = onpath.RateLimit(p.Spec.Resources.Network)
	return w
}

// Port is one veth pair: its vport, and the name of the end in the instance.
type Port struct {
	ID     onpath.VportID
	Inside string
}

// Ports are the veth pairs.
func (w Wiring) Ports() []Port {
	if w.Attach == AttachInline {
		return nil
	}
	if w.Attach == onpath.Bridged {
		return []Port{{w.Vport, "eth0"}, {w.Back, "eth1"}}
	}
	return []Port{{w.Vport, "eth0"}}
}

// Vports are those of all ports.
func (w Wiring) Vports() []onpath.VportID {
	if w.Attach == AttachInline {
		return []onpath.VportID{w.Vport}
	}
	var ids []onpath.VportID
	for _, p := range w.Ports() {
		ids = append(ids, p.ID)
	}
	return ids
}

// Wirer makes and removes namespaces and devices. The host's ends lie in the
// agent's own namespace.
type Wirer struct {
	Node  string
	NetNS string // of the host's ends; empty: the process's own
	Dir   base.Dir
	Log   *slog.Logger
	// users says why containers cannot have users of their own here.
	Users func() error
}

// Open opens netlink in the namespace at path.
func Open(path string) (*netlink.Handle, error) {
	ns := netns.None()
	if path != "" {
		f, err := netns.GetFromPath(path)
		if err != nil {
			return nil, fmt.Errorf("open network namespace %s: %w", path, err)
		}
		defer f.Close()
		ns = f
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in network namespace %q: %w", path, err)
	}
	return h, nil
}

// Wire makes the instance's namespace, devices, addresses and routes, where
// they are not as w wants them; done is the hash of what an earlier wire made.
// pid, if not 0, is a running process of the instance: its namespace is used.
// It reports what it made anew, also if it failed.
func (r Wirer) Wire(ctx context.Context, w Wiring, done string, pid int) (made Made, err error) {
	path := r.Dir.NetNS(w.ID)
	if made.Namespace, err = r.Namespace(w, pid); err != nil {
		return made, err
	}
	host, err := Open(r.NetNS)
	if err != nil {
		return made, err
	}
	defer host.Close()
	in, err := Open(path)
	if err != nil {
		return made, err
	}
	defer in.Close()
	for _, p := range w.Ports() {
		if err := ctx.Err(); err != nil {
			return made, err
		}
		device, err := r.pair(host, in, w, p)
		made.Device = made.Device || device
		if err != nil {
			return made, err
		}
	}
	anew := made.Device || done != base.Hash(w)
	if anew {
		if err := r.inside(in, w, path); err != nil {
			return made, err
		}
		if err := r.outside(host, w); err != nil {
			return made, err
		}
		if err := r.pace(host, in, w); err != nil {
			return made, err
		}
	}
	return made, r.stretch(host, in, w, anew)
}

// There reports whether all devices of an instance are, connected as they must be.
func (r Wirer) There(w Wiring) bool {
	host, err := Open(r.NetNS)
	if err != nil {
		return false
	}
	defer host.Close()
	in, err := Open(r.Dir.NetNS(w.ID))
	if err != nil {
		return false
	}
	defer in.Close()
	return !slices.ContainsFunc(w.Ports(), func(p Port) bool {
		l, err := host.LinkByName(onpath.DeviceName(p.ID))
		return err != nil || !connected(in, l, p.Inside)
	})
}

// Made is what of an instance's wiring was not there before.
type Made struct{ Namespace, Device bool }

// Namespace makes the instance's namespace unless it is there; anew if nothing
// runs in it.
func (r Wirer) Namespace(w Wiring, pid int) (anew bool, err error) {
	path := r.Dir.NetNS(w.ID)
	if netnsrun.Is(path) {
		return false, nil
	}
	if own := fmt.Sprintf("/proc/%d/ns/net", pid); pid != 0 && !isHosts(own) {
		return false, netnsrun.Bind(own, path) // the name is gone (another mount namespace), the namespace is not
	}
	if w.UserNamespace != "" {
		err := r.Users()
		if err == nil {
			return true, userns.CreateNet(path, userns.First(uint32(w.Vport)))
		}
		if w.UserNamespace == onpath.UserNamespacesRequired {
			return false, &onpath.Error{Code: onpath.CodeUnsupported, Cause: err,
				Message: "containers have no users of their own on this node: " + err.Error(),
				Remedy:  "see onpath doctor on the node, or change spec.isolation.userNamespaces of its cloudlet"}
		}
		r.Log.Warn("a tenant's container has the machine's users", "instance", w.ID, "err", err)
	}
	return true, netnsrun.Create(path)
}

// isHosts reports whether the namespace is this process's own, which no
// instance is in.
func isHosts(ns string) bool {
	a, err := os.Readlink(ns)
	b, err2 := os.Readlink("/proc/self/ns/net")
	return err != nil || err2 != nil || a == b
}

// pair makes one veth pair unless it is there, whole.
func (r Wirer) pair(host, in *netlink.Handle, w Wiring, p Port) (made bool, err error) {
	name := onpath.DeviceName(p.ID)
	switch l, err := host.LinkByName(name); {
	case err == nil && connected(in, l, p.Inside):
		return false, nil
	case err == nil:
		if owner, ok := strings.CutPrefix(l.Attrs().Alias, r.Alias("")); ok && owner != w.ID {
			return false, fmt.Errorf("device %s still belongs to instance %s", name, owner)
		}
		if err := host.LinkDel(l); err != nil {
			return false, fmt.Errorf("delete half-made device %s: %w", name, err)
		}
	case !isNoLink(err):
		return false, fmt.Errorf("look for device %s: %w", name, err)
	}
	hostMAC, err := net.ParseMAC(onpath.HostMAC(p.ID))
	if err != nil {
		return false, err
	}
	inMAC, err := net.ParseMAC(onpath.InstanceMAC(p.ID))
	if err != nil {
		return false, err
	}
	ns, err := netns.GetFromPath(r.Dir.NetNS(w.ID))
	if err != nil {
		return false, fmt.Errorf("open the instance's network namespace: %w", err)
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, w.MTU, hostMAC
	// Checksum, segmentation and generic receive offloads stay as veth has them, unless
	// WholeFrames: tc hands partial checksums and whole GSO packets on as they are.
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: p.Inside, PeerHardwareAddr: inMAC, PeerNamespace: netlink.NsFd(int(ns))}
	if err := host.LinkAdd(veth); err != nil {
		return false, fmt.Errorf("create device %s with %s in the instance: %w", name, p.Inside, err)
	}
	l, err := host.LinkByName(name)
	if err != nil {
		return true, fmt.Errorf("find device %s just made: %w", name, err)
	}
	if err := host.LinkSetAlias(l, r.Alias(w.ID)); err != nil {
		return true, fmt.Errorf("mark device %s: %w", name, err)
	}
	return true, nil
}

// Dump asks the kernel for a list again while the answer was disturbed by a
// change; what there is does not change for ever.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	for range 50 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// AliasPrefix begins the alias of every host-side device of any agent.
const AliasPrefix = "onpath "

// Alias marks the devices of an instance.
func (r Wirer) Alias(id string) string { return AliasPrefix + r.Node + " " + id }

// connected reports whether the device named inside is l's other end.
func connected(in *netlink.Handle, l netlink.Link, inside string) bool {
	peer, err := in.LinkByName(inside)
	return err == nil && l.Type() == "veth" && l.Attrs().ParentIndex == peer.Attrs().Index && peer.Attrs().ParentIndex == l.Attrs().Index
}

func isNoLink(err error) bool {
	var gone netlink.LinkNotFoundError
	return errors.As(err, &gone) || errors.Is(err, unix.ENODEV)
}

// Unwire deletes the devices and the namespace of an instance; what is gone
// already is no error.
func (r Wirer) Unwire(id string, vports []onpath.VportID) error {
	host, err := Open(r.NetNS)
	if err != nil {
		return err
	}
	defer host.Close()
	var errs []error
	for _, v := range vports {
		name := onpath.DeviceName(v)
		l, err := host.LinkByName(name)
		if isNoLink(err) {
			continue
		}
		if err == nil {
			if alias := l.Attrs().Alias; strings.HasPrefix(alias, AliasPrefix) && !strings.HasSuffix(alias, " "+id) {
				continue // made anew for another
			}
			if l.Attrs().HardwareAddr.String() != onpath.HostMAC(v) {
				continue // not one of ours
			}
			err = host.LinkDel(l)
		}
		if err != nil && !isNoLink(err) {
			errs = append(errs, fmt.Errorf("delete device %s: %w", name, err))
		}
	}
	errs = append(errs, netnsrun.Remove(r.Dir.NetNS(id)))
	return errors.Join(errs...)
}

// Devices lists the host-side devices that carry our alias, with the id of the
// instance each belongs to.
func (r Wirer) Devices() (map[string]string, error) {
	host, err := Open(r.NetNS)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	links, err := Dump(host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the network devices: %w", err)
	}
	out := map[string]string{}
	for _, l := range links {
		if id, ok := strings.CutPrefix(l.Attrs().Alias, r.Alias("")); ok {
			out[l.Attrs().Name] = id
		}
	}
	return out, nil
}

// DeleteDevice deletes a device in the host's namespace; none is no error.
func (r Wirer) DeleteDevice(name string) error {
	host, err := Open(r.NetNS)
	if err != nil {
		return err
	}
	defer host.Close()
	l, err := host.LinkByName(name)
	if err == nil {
		err = host.LinkDel(l)
	}
	if err != nil && !isNoLink(err) {
		return fmt.Errorf("delete device %s: %w", name, err)
	}
	return nil
}
