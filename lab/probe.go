package lab

import (
	"fmt"
	"runtime"

	"github.com/onpath/onpath"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// probeNetem builds a shaped link in a new network namespace of the calling
// goroutine's thread, which it never unlocks.
func probeNetem() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("probe netem: new network namespace: %w", err)
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("probe netem: %w", err)
	}
	w := &inside{Handle: h}
	defer h.Close()
	v := netlink.NewVeth(netlink.LinkAttrs{Name: "a"})
	v.PeerName = "b"
	if err := w.LinkAdd(v); err != nil {
		return fmt.Errorf("probe netem: veth: %w", err)
	}
	if err := shape(w, "a", "b", Shape{Delay: 1e6, Rate: 1e9, Loss: 0.01, Queue: 1 << 20}, 1500); err != nil {
		return &onpath.Error{Code: onpath.CodeUnsupported, Message: "this kernel cannot shape links: " + err.Error(), Remedy: "load sch_netem, cls_matchall and act_mirred, or let the lab use its own links", Cause: err}
	}
	return nil
}
