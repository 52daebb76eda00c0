package trial_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab"
	"github.com/onpath/onpath/measure/trial"
)

// cloud is one of the lab's clouds.
func cloud(t *testing.T, name string) *lab.Lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	topology, err := lab.ParseFile("../../examples/lab/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), topology, lab.Options{Name: fmt.Sprintf("%s-%d", name, os.Getpid()), StateDir: t.TempDir(), Bound: true})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // until its filters are there
		s, err := l.Status(t.Context())
		if err != nil || time.Now().After(deadline) {
			t.Fatal("the lab's commands do not end", err)
		}
		if !slices.ContainsFunc(s.Processes, func(p lab.ProcessStatus) bool { return p.Host != "" && p.Running }) {
			break
		}
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// between has two machines do a trial.
func between(t *testing.T, from, to trial.Machine, p trial.Part) *trial.Result {
	t.Helper()
	p.Word = word
	over, ports, heard := make(chan struct{}), make(chan trial.Ports, 1), make(chan *trial.Result, 1)
	go func() {
		got, err := to.Receive(t.Context(), p, func(l trial.Ports) error { ports <- l; return nil }, over)
		if err != nil {
			t.Error(err)
		}
		heard <- got
	}()
	p.Listens = <-ports
	sent, err := from.Send(t.Context(), p)
	close(over)
	got := <-heard
	if err != nil {
		t.Fatal(err)
	}
	sent.Hear(got)
	return sent
}

// vm is one of the lab's machines.
func vm(l *lab.Lab, name string) trial.Machine { return trial.Machine{NetNS: l.NetNS(name)} }

// tries has a trial find out what passes from vm1 to another machine.
func tries(t *testing.T, l *lab.Lab, to, address, source string, hopLimit int, passes ...string) {
	t.Helper()
	got := between(t, vm(l, "vm1"), vm(l, to), trial.Part{Kind: trial.Network, Address: netip.MustParseAddr(address), Tunnel: 4797})
	for _, name := range []string{trial.TCP, trial.UDP, trial.TunnelPort, trial.ICMP, trial.GRE, trial.ESP,
		trial.Other, trial.Foreign} {
		want := slices.Contains(passes, name)
		if p, ok := got.Find(name); !ok || p.Arrived != want || !want && p.Why == "" {
			t.Errorf("%s to %s: %+v, want %v", name, address, p, want)
		}
	}
	p, _ := got.Find(trial.UDP)
	if p.Source.String() != source || p.HopLimit != hopLimit || got.Largest() != 1500 {
		t.Errorf("UDP to %s arrives as %+v, the largest packet has %d bytes; want source %s, hop limit %d, 1500 bytes", address, p,
			got.Largest(), source, hopLimit)
	}
}

// TestNeighbours: a cloud of neighbours passes what its switch lets through, over both IP
// versions.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	l := cloud(t, "cloud-protocols")
	passes := []string{trial.TCP, trial.UDP, trial.TunnelPort, trial.ICMP, trial.Foreign}
	tries(t, l, "vm2", "10.21.0.12", "10.21.0.11", 64, passes...)
	tries(t, l, "vm2", "fd21::12", "fd21::11", 64, passes...)
}

// TestRouted: a cloud that routes takes one from the hop limit, and drops foreign sources.
func TestRouted(t *testing.T) {
	t.Parallel()
	l := cloud(t, "cloud-routed")
	passes := []string{trial.TCP, trial.UDP, trial.TunnelPort, trial.ICMP, trial.GRE, trial.ESP, trial.Other}
	tries(t, l, "vm2", "10.22.2.2", "10.22.1.2", 63, passes...)
	tries(t, l, "vm2", "fd22:2::2", "fd22:1::2", 63, passes...)
}

// TestNAT: from behind NAT nothing but UDP arrives, from another source; throughput and
// round trips are those of the links.
func TestNAT(t *testing.T) {
	t.Parallel()
	l := cloud(t, "cloud-nat")
	tries(t, l, "vm3", "203.0.113.2", "198.51.100.2", 62, trial.UDP, trial.TunnelPort)
	p := trial.Part{Kind: trial.RoundTrip, Protocol: trial.ByUDP, Count: 5, Address: netip.MustParseAddr("203.0.113.2")}
	got := between(t, vm(l, "vm1"), vm(l, "vm3"), p)
	if len(got.RoundTrips) != 5 || time.Duration(got.RoundTrips[0]) < 14*time.Millisecond {
		t.Errorf("round trips over links of 5 and 2 ms: %v", got.RoundTrips)
	}
	p.Kind, p.For = trial.Throughput, onpath.Duration(100*time.Millisecond)
	if got := between(t, vm(l, "vm1"), vm(l, "vm3"), p); got.Rate <= 0 || got.Lost < 0 || got.Lost >= 1 {
		t.Errorf("throughput %.0f bit/s, lost %.2f", got.Rate, got.Lost)
	}
	p.Protocol = trial.ByTCP
	if got := between(t, vm(l, "vm3"), vm(l, "vm3"), p); got.Rate <= 0 {
		t.Errorf("throughput of TCP within a machine: %.0f bit/s", got.Rate)
	}
}

const word = "00112233445566778899aabbccddeeff"
