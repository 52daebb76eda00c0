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

// filterName marks our filters where the kernel has no tcx.
const filterName = "onpath"

// attachments are the programs on devices. With tcx each is a pinned link, named
// after program and device; without, a filter of the device's clsact queue.
type attachments struct {
	dir   string
	ns    *namespace
	progs map[string]*ebpf.Program
	links map[attachment]link.Link
	noTCX bool
}

type attachment struct {
	program string
	ifindex int
}

func (a attachment) file() string { return "link-" + a.program + "-" + strconv.Itoa(a.ifindex) }

// openAttachments takes over the pinned links and gives them our programs.
func openAttachments(dir string, ns *namespace, progs map[string]*ebpf.Program) (*attachments, error) {
	as := &attachments{dir: dir, ns: ns, progs: progs, links: map[attachment]link.Link{}}
	files, err := filepath.Glob(filepath.Join(dir, "link-*"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		a, ok := parseLinkFile(filepath.Base(f))
		if !ok {
			continue
		}
		l, err := link.LoadPinnedLink(f, nil)
		if err != nil {
			return nil, fmt.Errorf("open pinned link %s: %w", f, err)
		}
		if err := l.Update(progs[a.program]); err != nil {
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

func parseLinkFile(name string) (attachment, bool) {
	parts := strings.Split(name, "-")
	if len(parts) != 3 {
		return attachment{}, false
	}
	n, err := strconv.Atoi(parts[2])
	return attachment{parts[1], n}, err == nil
}

// attach puts a program on a device's ingress unless it is there.
func (as *attachments) attach(a attachment) error {
	if l := as.links[a]; l != nil {
		if info, err := l.Info(); err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == a.ifindex {
			return nil
		}
		if err := as.detach(a); err != nil {
			return err
		}
	}
	if as.noTCX {
		return as.attachFilter(a)
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: a.ifindex, Program: as.progs[a.program], Attach: ebpf.AttachTCXIngress, Anchor: link.Head(),
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		as.noTCX = true
		return as.attachFilter(a)
	}
	if err != nil {
		return fmt.Errorf("attach %s to device %d: %w", a.program, a.ifindex, err)
	}
	if err := l.Pin(filepath.Join(as.dir, a.file())); err != nil {
		l.Close()
		return fmt.Errorf("pin %s: %w", a.file(), err)
	}
	as.links[a] = l
	return nil
}

func (as *attachments) detach(a attachment) error {
	if as.noTCX {
		return removeFilters(as.ns.nl, a.ifindex)
	}
	l := as.links[a]
	if l == nil {
		return nil
	}
	delete(as.links, a)
	err := os.Remove(filepath.Join(as.dir, a.file()))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.Close()) // the last reference detaches it
}

// retain detaches everything that is not in want.
func (as *attachments) retain(want map[attachment]bool) error {
	for a := range as.links {
		if !want[a] {
			if err := as.detach(a); err != nil {
				return err
			}
		}
	}
	if !as.noTCX {
		return nil
	}
	keep := map[int]bool{}
	for a := range want {
		keep[a.ifindex] = true
	}
	links, err := as.ns.nl.LinkList()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		if !keep[l.Attrs().Index] {
			if err := removeFilters(as.ns.nl, l.Attrs().Index); err != nil {
				return err
			}
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
	qdisc := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: a.ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
	if err := as.ns.nl.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact to device %d: %w", a.ifindex, err)
	}
	f := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: a.ifindex, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
		},
		Fd: as.progs[a.program].FD(), Name: filterName, DirectAction: true,
	}
	if err := as.ns.nl.FilterReplace(f); err != nil {
		return fmt.Errorf("attach %s to device %d: %w", a.program, a.ifindex, err)
	}
	return nil
}

// removeFilters takes our filters off a device, and its clsact queue if nothing
// else is left there.
func removeFilters(nl *netlink.Handle, ifindex int) error {
	l, err := nl.LinkByIndex(ifindex)
	if err != nil {
		return nil // gone, and its filters with it
	}
	filters, err := nl.FilterList(l, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil // no clsact
	}
	others := 0
	ours := 0
	for _, f := range filters {
		b, ok := f.(*netlink.BpfFilter)
		if !ok || b.Name != filterName {
			others++
			continue
		}
		ours++
		if err := nl.FilterDel(f); err != nil {
			return fmt.Errorf("remove filter from %s: %w", l.Attrs().Name, err)
		}
	}
	egress, _ := nl.FilterList(l, netlink.HANDLE_MIN_EGRESS)
	if ours > 0 && others == 0 && len(egress) == 0 {
		return nl.QdiscDel(&netlink.GenericQdisc{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
			QdiscType:  "clsact",
		})
	}
	return nil
}
