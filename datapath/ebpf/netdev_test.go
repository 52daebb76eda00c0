package ebpf

import (
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/offload"
)

// TestStrippedTags: XDP keeps off a device that takes tags off, while VLAN devices stand on it.
func TestStrippedTags(t *testing.T) {
	links := []netlink.Link{
		&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 2}},
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "eth0.100", Index: 5, ParentIndex: 2}, VlanId: 100},
		&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mac0", Index: 6, ParentIndex: 3}},
	}
	yes, no := func(string) bool { return true }, func(string) bool { return false }
	if why := stripsTags("eth0", 2, links, yes); !strings.Contains(why, "eth0.100") || !strings.Contains(why, "ethtool -K eth0 rxvlan off") {
		t.Errorf("of a device with a VLAN it says %q", why)
	}
	if why := stripsTags("eth0", 2, links, no) + stripsTags("eth1", 3, links, yes); why != "" {
		t.Errorf("of a device that leaves tags on, and of one without VLANs, it says %q", why)
	}
}

// TestStripsTagsAsks: what a device does with tags is asked of the kernel.
func TestStripsTagsAsks(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the namespace goes with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skip("needs root to make a network namespace: ", err)
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tags0"}, PeerName: "tags1"}); err != nil {
		t.Fatal(err)
	}
	if !offload.StripsTags("tags0") {
		t.Error("a veth does not take tags off, and it does")
	}
	if err := offload.Disable("tags0", []string{"rx-vlan-hw-parse"}); err != nil {
		t.Fatal(err)
	}
	if offload.StripsTags("tags0") {
		t.Error("a veth takes tags off though it was told not to")
	}
	if offload.StripsTags("none0") {
		t.Error("a device that is not there takes tags off")
	}
}
