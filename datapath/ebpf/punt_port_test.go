package ebpf

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath/internal/netnsrun"
)

// TestNeedPunt: whatever was left of the punt port, afterwards both ends are there and up.
func TestNeedPunt(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ns := filepath.Join(t.TempDir(), "ns")
	must(netnsrun.Create(ns))
	defer func() { must(netnsrun.Remove(ns)) }()
	must(netnsrun.Do(ns, func() error {
		h, err := netlink.NewHandle()
		must(err)
		defer h.Close()
		link := func(name string) netlink.Link {
			l, err := h.LinkByName(name)
			must(err)
			return l
		}
		good := func(left string) int {
			t.Helper()
			index, err := needPunt(h)
			must(err)
			for _, name := range []string{puntDevice, puntReader} {
				if link(name).Attrs().Flags&net.FlagUp == 0 {
					t.Errorf("%s: %s is down", left, name)
				}
			}
			if at := link(puntDevice).Attrs().Index; at != index {
				t.Errorf("%s: the port is at %d, not %d", left, at, index)
			}
			return index
		}
		first := good("nothing")
		if again := good("all"); again != first {
			t.Errorf("a good port was made anew: %d, then %d", first, again)
		}
		for _, name := range []string{puntDevice, puntReader} {
			must(h.LinkSetDown(link(name)))
			good(name + " down")
			must(h.LinkSetDown(link(name)))
			must(h.LinkSetName(link(name), "another"))
			good(name + " under another name")
		}
		return removePunt(h)
	}))
}
