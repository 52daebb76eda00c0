package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// backend is a server that says who it is and then echoes.
type backend struct {
	addr string
	l    net.Listener

	mu      sync.Mutex
	callers map[string]bool // addresses
	conns   []net.Conn
}

func startBackend(t *testing.T, addr string) *backend {
	t.Helper()
	b := &backend{addr: addr, callers: map[string]bool{}}
	in(t, "origin", func() (err error) {
		b.l, err = net.Listen("tcp", net.JoinHostPort(addr, "8080"))
		return err
	})
	var wg sync.WaitGroup
	t.Cleanup(func() { b.die(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := b.l.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.callers[c.RemoteAddr().(*net.TCPAddr).IP.String()] = true
			b.conns = append(b.conns, c)
			b.mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				fmt.Fprintf(c, "%-16s", addr)
				_, _ = io.Copy(c, c)
			})
		}
	})
	return b
}

// calledBy are the addresses that have called so far.
func (b *backend) calledBy() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.callers))
}

// die ends the server and its connections.
func (b *backend) die() {
	b.l.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		c.Close()
	}
}

func balancerYAML(backends ...string) string {
	return farmYAML("10.9.0.21,10.9.0.22,10.9.0.23,10.9.0.24", "203.0.113.80", backends)
}

// farmYAML balances what is sent to the virtual addresses among backends, whose addresses
// are listed too, so that their answers pass.
func farmYAML(addresses, virtual string, backends []string) string {
	return fmt.Sprintf(`
apiVersion: onpath/v1alpha1
kind: Hosts
metadata: {name: farm}
spec: {addresses: [%s], virtual: [%s]}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: balance}
spec:
  state: none
  packets: rewrite
  ebpf:
    object: loadbalancer
    budget: 50us
    config: {virtual: "%s", ports: "80", every: 200ms}
    files: {backends: {content: "%s"}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: farm}
spec:
  from: {hosts: client}
  to: {hosts: farm}
  through: [{function: balance, drain: 1s}]
`, items(addresses), items(virtual), virtual, strings.Join(backends, `\n`))
}

// items are those of a list with commas, quoted: addresses have colons.
func items(list string) string { return `"` + strings.ReplaceAll(list, ",", `", "`) + `"` }

// customer is a connection to the virtual address, and the backend that answered.
type customer struct {
	c  net.Conn
	to string
}

func dialFarm(t *testing.T) (s customer, err error) {
	t.Helper()
	return dialFarmAt(t, "203.0.113.80")
}

func dialFarmAt(t *testing.T, virtual string) (s customer, err error) {
	t.Helper()
	c, err := dialTCP(t, virtual, 80, time.Minute)
	if err != nil {
		return s, err
	}
	name := make([]byte, 16)
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(c, name); err != nil {
		c.Close()
		return s, err
	}
	t.Cleanup(func() { c.Close() })
	return customer{c, strings.TrimSpace(string(name))}, nil
}

func (s customer) alive() error {
	_ = s.c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := s.c.Write([]byte("ping")); err != nil {
		return err
	}
	_, err := io.ReadFull(s.c, make([]byte, 4))
	return err
}

// TestLoadbalancer: real backends behind a virtual address. Connections outlive a
// change of backends; who dies gets no new ones.
func TestLoadbalancer(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	farm := map[string]*backend{}
	for i := range 4 {
		addr := fmt.Sprintf("10.9.0.%d", 21+i)
		run(ctx, t, "origin", "ip", "address", "add", addr+"/24", "dev", "eth0")
		t.Cleanup(func() {
			run(context.WithoutCancel(ctx), t, "origin", "ip", "address", "del", addr+"/24", "dev", "eth0")
		})
		farm[addr] = startBackend(t, addr)
	}
	apply(ctx, t, balancerYAML("10.9.0.21:8080", "10.9.0.22:8080", "10.9.0.23:8080"))
	active(ctx, t, "farm")
	var sessions []customer
	open := func(n int) map[string]int {
		t.Helper()
		shares := map[string]int{}
		for range n {
			s, err := dialFarm(t)
			if err != nil {
				t.Fatal(err)
			}
			sessions = append(sessions, s)
			shares[s.to]++
		}
		return shares
	}
	if shares := open(60); len(shares) != 3 {
		t.Errorf("60 connections go to %v, must go to three backends", shares)
	}
	traceFarm(ctx, t, sessions[7])
	for _, b := range farm {
		for _, caller := range b.calledBy() {
			if caller != "10.1.0.2" && caller != "10.9.0.1" { // the client, and the node's checks
				t.Errorf("backend %s is called by %s, must see the client's own address", b.addr, caller)
			}
		}
	}

	apply(ctx, t, balancerYAML("10.9.0.21:8080", "10.9.0.23:8080", "10.9.0.24:8080"))
	err := testbed.WaitFor(ctx, "the new backend gets connections", time.Minute, func() (bool, error) {
		s, err := dialFarm(t)
		return err == nil && s.to == "10.9.0.24", err
	})
	if err != nil {
		t.Fatal(err)
	}
	if shares := open(60); shares["10.9.0.22"] != 0 {
		t.Errorf("a backend that was taken out gets new connections: %v", shares)
	}
	for _, s := range sessions {
		if err := s.alive(); err != nil {
			t.Errorf("a connection to %s did not outlive the change of backends: %v", s.to, err)
		}
	}

	farm["10.9.0.21"].die()
	err = testbed.WaitFor(ctx, "the dead backend gets no connections", time.Minute, func() (bool, error) {
		for range 60 { // as many as leave no room for luck
			if _, err := dialFarm(t); err != nil {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if shares := open(30); shares["10.9.0.21"] != 0 || len(shares) != 2 {
		t.Errorf("after a backend died connections go to %v", shares)
	}
	for _, s := range sessions {
		if err := s.alive(); err != nil && s.to != "10.9.0.21" {
			t.Errorf("a connection to %s did not outlive the death of another backend: %v", s.to, err)
		}
	}
}

// traceFarm: a trace follows a connection to the backend that it was given, and finds
// the answers, which come from there.
func traceFarm(ctx context.Context, t *testing.T, s customer) {
	t.Helper()
	if err := s.alive(); err != nil {
		t.Fatal(err)
	}
	from, to := s.c.LocalAddr().(*net.TCPAddr).AddrPort(), s.c.RemoteAddr().(*net.TCPAddr).AddrPort()
	tu := onpath.Tuple{Protocol: 6, Src: from.Addr().Unmap(), SrcPort: from.Port(), Dst: to.Addr().Unmap(), DstPort: to.Port()}
	tr, err := api(t).Trace(ctx, tu, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct {
		hops []onpath.TraceHop
		says string
	}{{tr.Forward, "→ " + s.to + " port 8080"}, {tr.Reverse, "goes on as 203.0.113.80 port 80"}} {
		if got := traceHops(way.hops); got != "edge farm-balance exit" {
			t.Errorf("the connection passes %s; trace %+v", got, tr)
			continue
		}
		for _, h := range way.hops[:2] {
			if h.Flow == nil || h.Flow.Packets == 0 {
				t.Errorf("no packets at %+v", h)
			}
		}
		if !strings.Contains(way.hops[1].Message, way.says) {
			t.Errorf("of the load balancer it says %q, not %q", way.hops[1].Message, way.says)
		}
	}
}
