package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// behind makes a namespace that an instance's leads to by a device of its own; what that gets
// comes to the instance as what its own device gets. 10.2.0.2 is there.
func behind(t *testing.T, instance string) (origin string) {
	t.Helper()
	origin = filepath.Join(t.TempDir(), "origin")
	if err := netnsrun.Create(origin); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netnsrun.Remove(origin) })
	there, err := netns.GetFromPath(origin)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	end := func(dev, addr string) error {
		l, err := netlink.LinkByName(dev)
		if err != nil {
			return err
		}
		a, _ := netlink.ParseAddr(addr)
		return errors.Join(netlink.LinkSetUp(l), netlink.AddrAdd(l, a))
	}
	err = netnsrun.Do(instance, func() error {
		a := netlink.NewLinkAttrs()
		a.Name = "far"
		veth := &netlink.Veth{LinkAttrs: a, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(there))}
		if err := errors.Join(netlink.LinkAdd(veth), end("far", "10.2.0.1/24")); err != nil {
			return err
		}
		rules, err := netlink.RuleList(unix.AF_INET)
		for _, rule := range rules {
			if rule.IifName == Device {
				rule.IifName = "far"
				return netlink.RuleAdd(&rule)
			}
		}
		return errors.Join(err, errors.New("the relay has written no rule for what comes in"))
	})
	if err == nil {
		err = netnsrun.Do(origin, func() error {
			return errors.Join(end("eth0", "10.2.0.2/24"), netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 2, 0, 1)}))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return origin
}

// TestOutOfFiles: a relay whose process loses the files that it counted on resets nobody: those
// that it has go on, and others wait until some end.
func TestOutOfFiles(t *testing.T) {
	s := subject(t)
	rt := s.Open(t)
	t.Cleanup(func() {
		if err := rt.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	to := netip.MustParseAddrPort("10.2.0.2:80")
	instance, client := between(t)
	spec := s.Spec(nil)
	spec.Relay.Work.Origins = []onpath.RelayOrigin{{Address: to, Size: 1000}}
	p, err := rt.Start(t.Context(), onpath.RunSpec{ID: "one", Labels: map[string]string{TenantLabel: "t"}, Spec: spec, NetNS: instance})
	if err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	if err := netnsrun.Do(behind(t, instance), func() (err error) {
		l, err = net.Listen("tcp4", to.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	dial := func() (c net.Conn, err error) {
		err = netnsrun.Do(client, func() error {
			c, err = (&net.Dialer{Timeout: time.Minute}).Dial("tcp4", to.String())
			return err
		})
		return c, err
	}
	echo := func(c net.Conn) error {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err := c.Write([]byte{7})
		return errors.Join(err, func() error { _, err := io.ReadFull(c, make([]byte, 1)); return err }())
	}
	files := func() int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	limit := func(files int) {
		var is unix.Rlimit
		err := unix.Prlimit(p.Pid(), unix.RLIMIT_NOFILE, nil, &is)
		if is.Cur = is.Max; files > 0 {
			is.Cur = uint64(files)
		}
		if err = errors.Join(err, unix.Prlimit(p.Pid(), unix.RLIMIT_NOFILE, &is, nil)); err != nil {
			t.Fatal(err)
		}
	}
	crowd := func(t *testing.T, size int) {
		var all sync.WaitGroup
		for range size {
			all.Go(func() {
				c, err := dial()
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				for range 2 { // and rests
					if err := echo(c); err != nil {
						t.Error(err)
						return
					}
					time.Sleep(30 * time.Millisecond)
				}
			})
		}
		all.Wait()
	}
	var old []net.Conn
	for range 20 {
		c, err := dial()
		if err == nil {
			err = echo(c)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		old = append(old, c)
	}
	open := files()
	for _, x := range []struct {
		name string
		most int
	}{{"room for some", open + 30}, {"fewer than it has", open - 10}, {"as many as before", 0}} {
		most := x.most
		limit(most)
		t.Run(x.name, func(t *testing.T) {
			if most > 0 && most < open { // until some end, there is room for nobody
				rest := old[5:]
				old = old[:5]
				time.AfterFunc(100*time.Millisecond, func() {
					for _, c := range rest {
						c.Close()
					}
				})

			}
			began := time.Now()
			crowd(t, 30)
			r, err := p.(onpath.Relaying).Relayed(t.Context())
			if err != nil {
				t.Error(err)
			}
			t.Logf("30 are served within %s; at most %d may be at once", time.Since(began), r.Most)
			for _, c := range old {
				if err := echo(c); err != nil {
					t.Errorf("one that was there: %v", err)
				}
			}
		})
	}
}
