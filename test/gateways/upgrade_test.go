package gateways

import (
	"context"
	"fmt"
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
	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
)

// earlier is the build that make test left beside the program, or one made now, of the
// commit that scripts/previous.commit names.
func earlier(ctx context.Context, t *testing.T, bin string) string {
	t.Helper()
	if _, err := os.Stat(bin + "-previous"); err == nil {
		return bin + "-previous"
	}
	build := exec.CommandContext(ctx, "../../scripts/previous", filepath.Join(t.TempDir(), "onpath-previous"))
	var why strings.Builder
	build.Stderr = &why
	out, err := build.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &why)
	}
	if len(out) == 0 {
		t.Skipf("there is no earlier build: %s", strings.TrimSpace(why.String()))
	}
	return strings.TrimSpace(string(out))
}

// TestUpgradeFromPrevious: where the version before this one runs, this one takes over,
// at the server and at one node after the other, so that for a while two gateways of a
// pair understand each other across versions. No packet is lost, no connection
// breaks, and the instances run on.
func TestUpgradeFromPrevious(t *testing.T) {
	bin := testprogram.Path(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s := setUpWith(ctx, t, earlier(ctx, t, bin))
	route(ctx, t, s, "origin", "10.9.0.3") // answers come by way of the other gateway
	if out, err := s.Onpath(ctx, "apply", "-f", "testdata/counted.yaml", "--wait"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := running(ctx, t, s)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var back atomic.Int64
	for i, c := range dial(t, s) {
		wg.Go(func() {
			if longest, err := talk(c, byte(i), stop, &back); err != nil || tooLong(longest) {
				t.Errorf("connection %d: an answer took %s: %v", i, longest, err)
			}
		})
	}
	g, err := s.Lab.StartGauge(lab.GaugeSpec{From: "client", To: "origin", Flows: 20, PerSecond: perFlow()})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	s.Use(bin)
	for _, name := range []string{"server", "gw1", "n1", "gw2"} {
		if err := s.Kill(name, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		start := func() error { return s.StartNode(ctx, name) }
		if name == "server" {
			start = func() error { return s.StartServer(ctx) }
		}
		if err := start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	time.Sleep(2 * time.Second)
	close(stop)
	wg.Wait()
	r, err := g.Stop(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d packets lost, longest blackout %s; %d bytes came back over connections", r.Lost, r.Sent, time.Duration(r.Blackout), back.Load())
	if r.Lost > 0 {
		t.Errorf("%d of %d packets were lost", r.Lost, r.Sent)
	}
	if after := running(ctx, t, s); !slices.Equal(after, before) {
		t.Errorf("instances were %v, and are %v", before, after)
	}
	version, err := exec.CommandContext(ctx, bin, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(strings.TrimSpace(string(version)), "onpath ")
	for _, name := range []string{"gw1", "gw2", "n1"} {
		var node onpath.Node
		if err := s.Get(ctx, &node, "nodes", name); err != nil || node.Status.Version != want {
			t.Errorf("%s runs %q, must be %q: %v", name, node.Status.Version, want, err)
		}
	}
	// New flows, and what is put together anew, as well.
	if out, err := s.Onpath(ctx, "apply", "-f", "testdata/more.yaml", "--wait"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := s.Onpath(ctx, "verify"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := s.Lab.Exec(ctx, "client", "ping", "-c", "10", "-i", "0.1", "10.9.0.2"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// running is the instances, how they do, and how often they were started.
func running(ctx context.Context, t *testing.T, s *demo.Testbed) (list []string) {
	t.Helper()
	instances, err := s.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range instances {
		list = append(list, fmt.Sprintf("%s is %s, %d restarts", i.Metadata.Name, i.Status.State, i.Status.Restarts))
	}
	slices.Sort(list)
	return list
}
