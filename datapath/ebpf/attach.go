package ebpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// attachments are the devices that the program is on. With tcx each is a pinned
// link, named after hook and device; without, a filter of the device's clsact
// queue.
type attachments struct {
	dir  string
	ns   *namespace
	prog *ebpf.Program
	// inside is for hookInside, fast for hookFast; nil: the kernel would not have it.
	inside, fast *ebpf.Program

	links map[attachment]link.Link
	// older are links where the program of an older version goes on until attach.
	older map[attachment]bool
	noTCX bool
}

// hook is where on a device the program runs.
type hook string

const (
	hookIngress     hook = "ingress"
	hookPromiscuous hook = "promiscuous" // ingress of a device that takes frames for anyone
	hookEgress      hook = "egress"
	hookInside      hook = "inside" // ingress of WireGuard's device, whose packets have no Ethernet header
	hookFast        hook = "fast"   // XDP, before all others
)

type attachment struct {
	hook    hook
	ifindex int
}

func (a attachment) file() string { return "link-" + string(a.hook) + "-" + strconv.Itoa(a.ifindex) }

// filter is the name of the filter where the kernel has no tcx.
func (a attachment) filter() string { return filterPrefix + string(a.hook) }

const filterPrefix = "onpath-"

func (a attachment) parent() uint32 {
	if a.hook == hookEgress {
		return netlink.HANDLE_MIN_EGRESS
	}
	return netlink.HANDLE_MIN_INGRESS
}

func (a attachment) tcx() ebpf.AttachType {
	if a.hook == hookEgress {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}

// setPromiscuous lets the device take frames for anyone, or no longer, if that
// is what the hook is for.
func (a attachment) setPromiscuous(nl *netlink.Handle, on bool) error {
	if a.hook != hookPromiscuous {
		return nil
	}
	l, err := nl.LinkByIndex(a.ifindex)
	if err != nil {
		return nil // gone
	}
	set := nl.SetPromiscOff
	if on {
		set = nl.SetPromiscOn
	}
	if err := set(l); err != nil {
		return fmt.Errorf("switch promiscuous mode of %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// openAttachments takes over the pinned links and gives them our program, or with
// later leaves them theirs until they are attached.
func openAttachments(dir string, ns *namespace, programs map[string]*ebpf.Program, later bool) (*attachments, error) {
	as := &attachments{dir: dir, ns: ns, prog: programs[program], inside: programs[insideProgram], fast: programs[fastProgram],
		links: map[attachment]link.Link{}, older: map[attachment]bool{}}
	files, err := filepath.Glob(filepath.Join(dir, "link-*"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		a, ok := parseLinkFile(filepath.Base(f))
		if !ok || as.program(a) == nil {
			if err := removeLink(f); err != nil { // another version's
				return nil, err
			}
			continue
		}
		l, err := link.LoadPinnedLink(f, nil)
		if err != nil {
			return nil, fmt.Errorf("open pinned link %s: %w", f, err)
		}
		if later {
			as.links[a], as.older[a] = l, true
			continue
		}
		if err := l.Update(as.program(a)); err != nil {
			// The device is gone, and the link with it.
			l.Close()
			if err := os.Remove(f); err != nil {
				return nil, err
			}
			continue
		}
		as.links[a] = l
	}
	return as, nil
}

// program is what runs at an attachment.
func (as *attachments) program(a attachment) *ebpf.Program {
	switch a.hook {
	case hookFast:
		return as.fast
	case hookInside:
		return as.inside
	}
	return as.prog
}

func parseLinkFile(name string) (attachment, bool) {
	parts := strings.Split(name, "-")
	if len(parts) != 3 {
		return attachment{}, false
	}
	n, err := strconv.Atoi(parts[2])
	h := hook(parts[1])
	return attachment{h, n}, err == nil && (h == hookIngress || h == hookPromiscuous || h == hookEgress || h == hookInside || h == hookFast)
}

// attach puts the program on a device unless it is there.
func (as *attachments) attach(a attachment) error {
	if err := a.setPromiscuous(as.ns.nl, true); err != nil {
		return err
	}
	if l := as.links[a]; l != nil {
		if a.holds(l) {
			return as.renew(a)
		}
		if err := as.unpin(a); err != nil {
			return err
		}
	}
	if a.hook == hookFast {
		return as.attachFast(a)
	}
	if as.noTCX {
		return as.attachFilter(a)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: a.ifindex, Program: as.program(a), Attach: a.tcx(), Anchor: link.Head()})
	if errors.Is(err, ebpf.ErrNotSupported) {
		as.noTCX = true
		return as.attachFilter(a)
	}
	if err != nil {
		return fmt.Errorf("attach to %s of device %d: %w", a.hook, a.ifindex, err)
	}
	return as.keep(a, l)
}

// renew replaces the program of an older version, between two packets.
func (as *attachments) renew(a attachment) error {
	if !as.older[a] {
		return nil
	}
	if err := as.links[a].Update(as.program(a)); err != nil {
		return fmt.Errorf("replace the program at %s of device %d: %w", a.hook, a.ifindex, err)
	}
	delete(as.older, a)
	return nil
}

// attachFast puts the fast path on a device whose driver has XDP; the kernel's
// substitute for others is slower than the ordinary path.
func (as *attachments) attachFast(a attachment) error {
	l, err := link.AttachXDP(link.XDPOptions{Interface: a.ifindex, Program: as.fast, Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("attach to XDP of device %d: %w", a.ifindex, err)
	}
	return as.keep(a, l)
}

// keep pins a link, so that it outlives the process.
func (as *attachments) keep(a attachment, l link.Link) error {
	if err := l.Pin(filepath.Join(as.dir, a.file())); err != nil {
		l.Close()
		return fmt.Errorf("pin %s: %w", a.file(), err)
	}
	as.links[a] = l
	return nil
}

// holds tells whether a link is still on its device: one dies with the other.
func (a attachment) holds(l link.Link) bool {
	info, err := l.Info()
	if err != nil {
		return false
	}
	if a.hook == hookFast {
		return info.XDP() != nil && int(info.XDP().Ifindex) == a.ifindex
	}
	return info.TCX() != nil && int(info.TCX().Ifindex) == a.ifindex
}

// unpin ends a link.
func (as *attachments) unpin(a attachment) error {
	l := as.links[a]
	delete(as.links, a)
	delete(as.older, a)
	return endLink(filepath.Join(as.dir, a.file()), l)
}

// removeLink ends the link that is pinned there, whichever process left it.
func removeLink(file string) error {
	l, err := link.LoadPinnedLink(file, nil)
	if err != nil {
		return os.Remove(file) // not a link: of another version, say
	}
	return endLink(file, l)
}

// endLink takes the program off the device and the pin away. That the pin was the last
// reference would do too, but some time later: until then traffic is not ordinary, and
// the device may lose what it holds when XDP goes.
func endLink(file string, l link.Link) error {
	err := os.Remove(file)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.Detach(), l.Close())
}

// retain detaches everything that is not in want.
func (as *attachments) retain(want map[attachment]bool) error {
	for a := range as.links {
		if want[a] {
			continue
		}
		if err := errors.Join(as.unpin(a), a.setPromiscuous(as.ns.nl, false)); err != nil {
			return err
		}
	}
	if !as.noTCX {
		return nil
	}
	links, err := dump(as.ns.nl.LinkList)
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		if err := removeFilters(as.ns.nl, l.Attrs().Index, want); err != nil {
			return err
		}
	}
	return nil
}

func (as *attachments) close() {
	for _, l := range as.links {
		l.Close()
	}
}

// attachFilter replaces our filter on the device by one with the program.
func (as *attachments) attachFilter(a attachment) error {
	if err := as.ns.nl.QdiscAdd(clsact(a.ifindex)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact to device %d: %w", a.ifindex, err)
	}
	f := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: a.ifindex, Parent: a.parent(), Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:          as.program(a).FD(), Name: a.filter(), DirectAction: true,
	}
	if err := as.ns.nl.FilterReplace(f); err != nil {
		return fmt.Errorf("attach to %s of device %d: %w", a.hook, a.ifindex, err)
	}
	return nil
}

func clsact(ifindex int) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

// removeFilters takes our filters off a device but those in keep, and its clsact
// queue if nothing else is left there.
func removeFilters(nl *netlink.Handle, ifindex int, keep map[attachment]bool) error {
	l, err := nl.LinkByIndex(ifindex)
	if err != nil {
		return nil // gone, and its filters with it
	}
	ours, others := 0, 0
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := nl.FilterList(l, parent)
		if err != nil {
			continue // no clsact
		}
		for _, f := range filters {
			b, ok := f.(*netlink.BpfFilter)
			if !ok || !strings.HasPrefix(b.Name, filterPrefix) {
				others++
				continue
			}
			a := attachment{hook(strings.TrimPrefix(b.Name, filterPrefix)), ifindex}
			if keep[a] {
				others++
				continue
			}
			ours++
			if err := errors.Join(nl.FilterDel(f), a.setPromiscuous(nl, false)); err != nil {
				return fmt.Errorf("remove filter from %s: %w", l.Attrs().Name, err)
			}
		}
	}
	if ours > 0 && others == 0 {
		return nl.QdiscDel(clsact(ifindex))
	}
	return nil
}
