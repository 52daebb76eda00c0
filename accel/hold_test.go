package accel

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath/internal/netnsrun"
)

// dialTo connects from the client within a time.
func (w *world) dialTo(to netip.AddrPort, within time.Duration) (c net.Conn, err error) {
	err = netnsrun.Do(w.lab.NetNS("client"), func() (err error) {
		c, err = (&net.Dialer{Timeout: within}).Dial("tcp", to.String())
		return err
	})
	return c, err
}

func (w *world) exec(host string, command string) {
	w.t.Helper()
	args := strings.Fields(command)
	if out, err := w.lab.Exec(context.Background(), host, args[0], args[1:]...); err != nil {
		w.t.Fatalf("%s: %s: %v: %s", host, command, err, out)
	}
}

// TestWait: where clients wait for their origin, it looks through relays as it is: a port is
// open, closed, unreachable or silent, and no connection is answered before it is there.
func TestWait(t *testing.T) {
	w := build(t, "")
	taken := make(chan struct{}, 10)
	w.serve(func(c net.Conn) {
		taken <- struct{}{}
		_, _ = io.Copy(c, c)
		_ = c.(*net.TCPConn).CloseWrite()
	})
	for host, next := range map[string]string{"client": "10.1.0.1", "r1": "10.1.1.2", "r2": "10.1.2.2"} {
		w.exec(host, "ip route add 10.9.0.0/16 via "+next)
	}
	w.exec("r3", "ip route add unreachable 10.9.0.1/32")
	w.exec("r3", "ip route add blackhole 10.9.0.2/32")
	w.exec("r1", "ip rule add iif east lookup "+strconv.Itoa(interceptTable)) // see TestTransparent
	w.relay("r2", nil, nil)
	ways := map[string]*fixed{
		"alone":                                 {Transparent: true},
		"a chain":                               {Next: []netip.AddrPort{testNodes["r2"]}},
		"a chain whose next relay is not there": {Next: []netip.AddrPort{netip.MustParseAddrPort("10.1.1.2:9")}},
	}
	var way current
	r := w.relay("r1", &fixed{}, func(c *Config) { c.Router = &way })
	way.Store(ways["alone"])
	r.Wait(true)
	closed := func() error {
		c, err := w.dialTo(netip.MustParseAddrPort("10.1.3.2:81"), time.Minute)
		if err == nil {
			c.Close()
		}
		return err
	}
	for until := time.Now().Add(time.Minute); !errors.Is(closed(), syscall.ECONNREFUSED) && time.Now().Before(until); { // it begins to hold SYNs
		time.Sleep(time.Millisecond)
	}
	before := r.Stats()
	for name, is := range ways {
		way.Store(is)
		t.Run(name, func(t *testing.T) {
			c, err := w.dialTo(testOrigin, time.Minute)
			if err != nil {
				t.Fatalf("an open port: %v", err)
			}
			defer c.Close()
			select {
			case <-taken:
			case <-time.After(time.Minute):
				t.Error("the client is answered, and no connection is there")
			}
			sent := "as it was"
			_, _ = c.Write([]byte(sent))
			_ = c.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(c); err != nil || string(got) != sent {
				t.Errorf("of %q came back %q, %v", sent, got, err)
			}
			for to, want := range map[string]error{
				"10.1.3.2:81": syscall.ECONNREFUSED, "10.9.0.1:80": syscall.EHOSTUNREACH, "10.9.0.2:80": nil,
			} {
				began, patience := time.Now(), time.Minute
				if want == nil {
					patience = 300 * time.Millisecond
				}
				c, err := w.dialTo(netip.MustParseAddrPort(to), patience)
				if err == nil {
					c.Close()
				}
				if want == nil && !isTimeout(err) || want != nil && !errors.Is(err, want) {
					t.Errorf("%s: after %s the client is told %v, want %v", to, time.Since(began), err, want)
				}
			}
		})
	}
	if s := r.Stats(); s.Reset+s.Refused != before.Reset+before.Refused {
		t.Errorf("it counts %+v, before %+v", s, before)
	}
}

// current routes as is told at the moment.
type current struct{ atomic.Pointer[fixed] }

func (c *current) Route(netip.AddrPort, netip.AddrPort) (Route, error) { return Route(*c.Load()), nil }
