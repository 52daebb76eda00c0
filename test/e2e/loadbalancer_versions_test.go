package e2e

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLoadbalancerVersions: clients of both IP versions dial, and each connection is
// one to a backend of its own; without one it is refused at once.
func TestLoadbalancerVersions(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	farm := map[string]*backend{}
	for addr, bits := range map[string]string{"10.9.0.21": "/24", "10.9.0.22": "/24", "fd09::21": "/64"} {
		run(ctx, t, "origin", "ip", "address", "add", addr+bits, "dev", "eth0", "nodad")
		t.Cleanup(func() {
			run(context.WithoutCancel(ctx), t, "origin", "ip", "address", "del", addr+bits, "dev", "eth0")
		})
		farm[addr] = startBackend(t, addr)
	}
	apply(ctx, t, farmYAML("10.9.0.21,10.9.0.22,fd09::21", "203.0.113.80,2001:db8::80", []string{"10.9.0.21:8080", "10.9.0.22:8080", "[fd09::21]:8080"}))
	active(ctx, t, "farm")
	for virtual, want := range map[string]int{"203.0.113.80": 2, "2001:db8::80": 1} {
		six, shares := strings.Contains(virtual, ":"), map[string]int{}
		for range 40 {
			s, err := dialFarmAt(t, virtual)
			if err != nil {
				t.Fatalf("after %v: %v", shares, err)
			}
			if strings.Contains(s.to, ":") != six {
				t.Fatalf("a connection to %s goes to %s", virtual, s.to)
			}
			shares[s.to]++
		}
		if len(shares) != want {
			t.Errorf("40 connections to %s go to %v, must go to %d backends", virtual, shares, want)
		}
	}
	farm["fd09::21"].die()
	err := testbed.WaitFor(ctx, "IPv6 clients are refused", time.Minute, func() (bool, error) {
		_, err := dialFarmAt(t, "2001:db8::80")
		return errors.Is(err, syscall.ECONNREFUSED), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if s, err := dialFarmAt(t, "203.0.113.80"); err != nil || strings.Contains(s.to, ":") {
			t.Errorf("without an IPv6 backend an IPv4 connection goes to %q, %v", s.to, err)
		}
	}
}
