package sockets_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/sockets"
)

// TestEnd ends open connections of both families, and those that the kernel still closes
// though their program is gone; who listens goes on.
func TestEnd(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	must(t, sockets.Possible())
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) { endAt(t, address) })
	}
}

func endAt(t *testing.T, address string) {
	ns := filepath.Join(t.TempDir(), "ns")
	must(t, netnsrun.Create(ns))
	t.Cleanup(func() { must(t, netnsrun.Remove(ns)) })
	link := func(set func(netlink.Link) error) {
		t.Helper()
		must(t, netnsrun.Do(ns, func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return set(lo)
		}))
	}
	link(netlink.LinkSetUp)
	var l net.Listener
	must(t, netnsrun.Do(ns, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	}))
	defer l.Close()
	dial := func() (near, far net.Conn) {
		t.Helper()
		must(t, netnsrun.Do(ns, func() (err error) {
			near, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
			return err
		}))
		far, err := l.Accept()
		must(t, err)
		return near, far
	}
	near, far := dial()
	orphan, other := dial()
	link(netlink.LinkSetDown) // so its FIN arrives nowhere
	must(t, orphan.Close())
	if n := end(t, ns); n != 4 {
		t.Errorf("%d connections were ended, must be the 4 ends of 2", n)
	}
	if n := end(t, ns); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	for _, c := range []net.Conn{near, far, other} {
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF || os.IsTimeout(err) {
			t.Errorf("a read from an ended connection gives %v", err)
		}
		_ = c.Close()
	}
	link(netlink.LinkSetUp)
	near, far = dial()
	_, _ = near.Close(), far.Close()
}

func end(t *testing.T, ns string) (n int) {
	t.Helper()
	must(t, netnsrun.Do(ns, func() (err error) {
		n, err = sockets.End()
		return err
	}))
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
