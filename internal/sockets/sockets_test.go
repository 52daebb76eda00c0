package sockets

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf/features"
	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath/internal/netnsrun"
)

// TestEnd ends open connections of both families, and those that the kernel still closes
// though their program is gone; who listens goes on.
func TestEnd(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	needKernel(t)
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
			near, err = net.DialTimeout("tcp", l.Addr().String(), time.Minute)
			return err
		}))
		far, err := l.Accept()
		must(t, err)
		return near, far
	}
	waits, over := dial() // becomes TIME_WAIT
	_, _ = waits.Close(), over.Close()
	near, far := dial()
	orphan, other := dial()
	link(netlink.LinkSetDown) // so its FIN arrives nowhere
	must(t, orphan.Close())
	if n := in(t, ns, End); n < 4 {
		t.Errorf("%d connections were ended, must be the 4 ends of 2, and one that may wait", n)
	}
	if n := in(t, ns, count); n > 1 {
		t.Errorf("%d connections are left, must be the one that waits, on an older kernel", n)
	}
	for _, c := range []net.Conn{near, far, other} {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF || os.IsTimeout(err) {
			t.Errorf("a read from an ended connection gives %v", err)
		}
		_ = c.Close()
	}
	link(netlink.LinkSetUp)
	near, far = dial() // who listens goes on
	_, _ = near.Close(), far.Close()
}

// TestEndMany ends more than fit one message.
func TestEndMany(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	needKernel(t)
	ns := filepath.Join(t.TempDir(), "ns")
	must(t, netnsrun.Create(ns))
	t.Cleanup(func() { must(t, netnsrun.Remove(ns)) })
	const many = 400
	var all []net.Conn
	must(t, netnsrun.Do(ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		for range many {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return err
			}
			far, err := l.Accept()
			if err != nil {
				return err
			}
			all = append(all, c, far)
		}
		return nil
	}))
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	if n := in(t, ns, End); n < many { // one end takes the other with it, or not
		t.Errorf("%d connections were ended, must be at least %d", n, many)
	}
	if n := in(t, ns, count); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// needKernel skips where an older kernel cannot end connections; Linux 6.11 can.
func needKernel(t *testing.T) {
	t.Helper()
	err := Possible()
	if err == nil {
		return
	}
	version, verr := features.LinuxVersionCode()
	must(t, verr)
	if version < 6<<16|11<<8 {
		t.Skipf("this kernel is older than Linux 6.11 and cannot end connections: %v", err)
	}
	t.Fatal(err)
}

func in(t *testing.T, ns string, do func() (int, error)) (n int) {
	t.Helper()
	must(t, netnsrun.Do(ns, func() (err error) {
		n, err = do()
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
