package gateways

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/lab"
)

// traffic is what runs while something is done: connections whose bytes are compared,
// and numbered packets.
type traffic struct {
	t    *testing.T
	g    *lab.Gauge
	stop chan struct{}
	wg   sync.WaitGroup
	back atomic.Int64
}

// perFlow is how many numbered packets each flow has a second: fewer beside other tests.
func perFlow() int {
	if os.Getenv("ONPATH_SOAK") != "" {
		return 250
	}
	return 50
}

func begin(t *testing.T, s *demo.Testbed) *traffic {
	t.Helper()
	x := &traffic{t: t, stop: make(chan struct{})}
	for i, c := range dial(t, s) {
		x.wg.Go(func() {
			if _, err := talk(c, byte(i), x.stop, &x.back); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	var err error
	if x.g, err = s.Lab.StartGauge(lab.GaugeSpec{From: "client", To: "origin", Flows: 20, PerSecond: perFlow()}); err != nil {
		t.Fatal(err)
	}
	return x
}

// end fails if a packet was lost.
func (x *traffic) end(ctx context.Context) {
	x.t.Helper()
	close(x.stop)
	x.wg.Wait()
	r, err := x.g.Stop(ctx)
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Logf("%d of %d packets lost; %d bytes came back over %d connections", r.Lost, r.Sent, x.back.Load(), connections)
	if r.Lost > 0 || x.back.Load() == 0 {
		x.t.Errorf("%d of %d packets were lost", r.Lost, r.Sent)
	}
}

// must runs the program.
func must(ctx context.Context, t *testing.T, s *demo.Testbed, args ...string) string {
	t.Helper()
	out, err := s.Onpath(ctx, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestRollback: a change of a chain that breaks it for what is new is taken back, and the
// taking back too: no connection over the element that stays breaks, no packet is lost. In
// make soak the element is then disabled and enabled, with the same promise.
func TestRollback(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs the program nft")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := setUp(ctx, t)
	x := begin(t, s)
	elements := func() int {
		var c onpath.Chain
		if err := s.Get(ctx, &c, "chain", "web"); err != nil {
			t.Fatal(err)
		}
		return len(c.Spec.Through)
	}
	passes := func(want bool) {
		t.Helper()
		err := s.WaitFor(ctx, fmt.Sprintf("new flows pass: %t", want), time.Minute, func() (bool, error) {
			_, err := s.Lab.Exec(ctx, "client", "ping", "-c1", "-W1", "10.9.0.2")
			return (err == nil) == want, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	must(ctx, t, s, "apply", "-f", "testdata/broken.yaml", "--wait")
	passes(false)
	for _, want := range []struct {
		elements int
		passes   bool
	}{{1, true}, {2, false}, {1, true}} {
		must(ctx, t, s, "rollback", "chain", "web", "--wait")
		if n := elements(); n != want.elements {
			t.Errorf("after a rollback the chain has %d elements, must have %d", n, want.elements)
		}
		passes(want.passes)
	}
	if os.Getenv("ONPATH_SOAK") != "" {
		// The same broken chain, with the element out of traffic, and back in it.
		must(ctx, t, s, "rollback", "chain", "web", "--wait")
		passes(false)
		for _, verb := range []string{"disable", "enable", "disable"} {
			must(ctx, t, s, verb, "chain", "web", "--element", "hole", "--wait")
			passes(verb == "disable")
			must(ctx, t, s, "verify")
		}
	}
	x.end(ctx)
}

const (
	restores  = 5
	perSecond = 50 // applies
)

// TestRestoreElsewhere: a backup that is made while others apply becomes a server in an
// empty folder, to which the nodes come back: nothing of what the backup knows is replaced, no
// packet is lost, every chain is proved, and what was given an id after the backup, which the
// new server never heard of, shares it with nothing.
func TestRestoreElsewhere(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	s := setUp(ctx, t)
	var before []string
	if err := s.WaitFor(ctx, "all instances are ready", time.Minute, func() (bool, error) {
		before = running(ctx, t, s)
		return !slices.ContainsFunc(before, func(x string) bool { return !strings.Contains(x, "is ready") }), nil
	}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(s.Bin()), fmt.Sprintf("backup-%d.tar", os.Getpid())) // all hosts see that folder
	t.Cleanup(func() { _ = os.Remove(file) })
	x := begin(t, s)
	ids := map[string]string{} // UIDs by what they were given
	for n := range restores {
		stop := applies(ctx, t, s)
		time.Sleep(time.Second)
		must(ctx, t, s, "backup", file)
		time.Sleep(time.Second)
		t.Logf("backup %d beside %d applies", n, stop())
		must(ctx, t, s, "apply", "-f", another(t, fmt.Sprintf("after-%d", n)), "--wait")
		noted(ctx, t, s, ids)
		if err := s.Kill("server", syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"rm", "-r", "/var/lib/onpath/server"}, {s.Bin(), "restore", file}} {
			if out, err := s.Lab.Exec(ctx, "server", args[0], args[1:]...); err != nil {
				t.Fatalf("%v: %v: %s", args, err, out)
			}
		}
		if err := s.StartServer(ctx); err != nil {
			t.Fatal(err)
		}
		err := s.WaitFor(ctx, "all nodes are back", time.Minute, func() (bool, error) {
			var nodes []onpath.Node
			if err := s.Get(ctx, &nodes, "nodes"); err != nil {
				return false, err
			}
			return !slices.ContainsFunc(nodes, func(n onpath.Node) bool { return !n.Status.Ready }), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		must(ctx, t, s, "apply", "-f", another(t, fmt.Sprintf("later-%d", n)), "--wait")
		noted(ctx, t, s, ids)
		if out, err := s.Onpath(ctx, "verify"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		must(ctx, t, s, "delete", "chain", fmt.Sprintf("later-%d", n))
	}
	x.end(ctx)
	if err := s.WaitFor(ctx, "only what was there runs", time.Minute, func() (bool, error) {
		return slices.Equal(running(ctx, t, s), before), nil
	}); err != nil {
		t.Errorf("%v: instances were %v, and are %v", err, before, running(ctx, t, s))
	}
}

// applies changes objects perSecond times a second until stop, which gives how often.
func applies(ctx context.Context, t *testing.T, s *demo.Testbed) (stop func() int) {
	t.Helper()
	end, count := make(chan struct{}), make(chan int)
	go func() {
		c := client.Unix(strings.TrimPrefix(s.Socket(), "unix://"))
		defer c.Close()
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		var done atomic.Int64
		var all sync.WaitGroup
		for n := 0; ; n++ {
			select {
			case <-end:
				all.Wait()
				count <- int(done.Load())
				return
			case <-tick.C:
			}
			address := onpath.Prefix{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(n / 200), byte(n % 200)}), 32)}
			h := &onpath.Hosts{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindHosts},
				Metadata: onpath.Metadata{Name: fmt.Sprintf("busy-%d", n%100), Tenant: onpath.DefaultTenant},
				Spec:     onpath.HostsSpec{Addresses: []onpath.Prefix{address}}}
			all.Go(func() { // also while earlier ones are under way, or a busy server would set the rate
				if _, err := c.Apply(ctx, []onpath.Object{h}, client.ApplyOptions{}); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				done.Add(1)
			})
		}
	}()
	return func() int { close(end); return <-count }
}

// another is a file with one more chain, over other traffic.
func another(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name+".yaml")
	text := "apiVersion: onpath/v1alpha1\nkind: Chain\nmetadata: {name: " + name + "}\nspec:\n  from: {prefixes: [10.1.0.128/25]}\n" +
		"  to: {hosts: origin}\n  through: [{function: hop, instances: 2}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// noted adds the ids that are in use; one of two objects is an error.
func noted(ctx context.Context, t *testing.T, s *demo.Testbed, ids map[string]string) {
	t.Helper()
	note := func(id, uid string) {
		if was := ids[id]; was != "" && was != uid {
			t.Errorf("%s was given to %s, and to %s", id, was, uid)
		}
		ids[id] = uid
	}
	instances, err := s.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range instances {
		note(fmt.Sprint("vport ", i.Spec.Vport), i.Metadata.UID)
		if i.Spec.Back != 0 {
			note(fmt.Sprint("vport ", i.Spec.Back), i.Metadata.UID)
		}
	}
	var chains []onpath.Chain
	if err := s.Get(ctx, &chains, "chains"); err != nil {
		t.Fatal(err)
	}
	for _, c := range chains {
		note(fmt.Sprint("path ", c.Status.Path), c.Metadata.UID)
	}
}
