package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// between makes an instance's namespace whose device leads to a client's: 10.1.0.2 there
// reaches all else through it.
func between(t *testing.T) (instance, client string) {
	t.Helper()
	instance, client = filepath.Join(t.TempDir(), "instance"), filepath.Join(t.TempDir(), "client")
	for _, ns := range []string{instance, client} {
		if err := netnsrun.Create(ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netnsrun.Remove(ns) })
	}
	there, err := netns.GetFromPath(client)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	end := func(dev, addr string) error {
		for _, name := range []string{"lo", dev} {
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			if err != nil {
				return err
			}
			if name == dev {
				a, _ := netlink.ParseAddr(addr)
				if err := netlink.AddrAdd(l, a); err != nil {
					return err
				}
			}
		}
		return nil
	}
	err = netnsrun.Do(instance, func() error {
		a := netlink.NewLinkAttrs()
		a.Name = Device
		veth := &netlink.Veth{LinkAttrs: a, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(there))}
		return errors.Join(netlink.LinkAdd(veth), end(Device, "10.1.0.1/24"))
	})
	if err == nil {
		err = netnsrun.Do(client, func() error {
			return errors.Join(end("eth0", "10.1.0.2/24"), netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 1, 0, 1)}))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return instance, client
}

// TestKilled: when the relays' process is killed, its connections end by a reset, at once:
// an end that looked proper would make half a transfer a whole one.
func TestKilled(t *testing.T) {
	s := subject(t)
	// The process, and with it the legs to origins, is in a namespace of its own.
	node := filepath.Join(t.TempDir(), "node")
	if err := netnsrun.Create(node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netnsrun.Remove(node) })
	origin, silent := netip.MustParseAddrPort("10.9.0.2:80"), netip.MustParseAddrPort("10.9.1.1:80")
	var l net.Listener
	err := netnsrun.Do(node, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		a, _ := netlink.ParseAddr("10.9.0.2/32")
		if err := errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, a)); err != nil {
			return err
		}
		l, err = net.Listen("tcp4", origin.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer c.Close()
		_, _ = c.Write([]byte("half of it"))
		_, err = io.Copy(io.Discard, c)
		ended <- err
	}()

	rt := s.Open(t)
	t.Cleanup(func() {
		if err := rt.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	instance, client := between(t)
	spec := s.Spec(nil)
	work := spec.Relay.Work
	work.Origins = []onpath.RelayOrigin{{ // by way of itself: legs then begin where the process is
		Address: origin, Size: 1000, Paths: []onpath.RelayPath{{UpTo: 1000, Next: []netip.AddrPort{work.Listen}}},
	}, {Address: silent, Size: 1000}}
	if err := netnsrun.Do(instance, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		_, nobody, _ := net.ParseCIDR("10.9.1.0/24")
		return netlink.RouteAdd(&netlink.Route{Dst: nobody, LinkIndex: lo.Attrs().Index, Scope: netlink.SCOPE_LINK})
	}); err != nil {
		t.Fatal(err)
	}
	var p onpath.Process
	err = netnsrun.Do(node, func() error {
		p, err = rt.Start(t.Context(), onpath.RunSpec{ID: "one", Labels: map[string]string{TenantLabel: "t"}, Spec: spec, NetNS: instance})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var c net.Conn
	err = netnsrun.Do(client, func() error {
		c, err = (&net.Dialer{Timeout: time.Minute}).Dial("tcp4", origin.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 10)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "half of it" {
		t.Fatalf("%q, %v", b, err)
	}
	// One whose origin does not answer: no byte has come yet.
	var early net.Conn
	err = netnsrun.Do(client, func() error {
		early, err = (&net.Dialer{Timeout: time.Minute}).Dial("tcp4", silent.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	time.Sleep(20 * time.Millisecond)
	began := time.Now()
	if err := syscall.Kill(p.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	_, err = c.Read(b)
	took := time.Since(began)
	if !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the client is told %v after %s, must be a reset", err, took)
	}
	if took > 300*time.Millisecond && os.Getenv("ONPATH_SOAK") != "" { // a bound of a machine that does nothing else
		t.Errorf("the client is reset after %s, must be within 300 ms", took)
	}
	_ = early.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := early.Read(b); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("before its first byte, a client is told %v", err)
	}
	if err := <-ended; !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the origin is told %v", err)
	}
}
