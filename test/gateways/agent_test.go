package gateways

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestGatewayAgentAway: a gateway's agent stays away for longer than it takes to have
// instances replaced. What comes by that gateway goes on, through containers elsewhere and
// the function that its data path runs itself, also when more instances are asked for; and
// all the while both directions of every flow are proved to cross them.
func TestGatewayAgentAway(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; this takes two minutes")
	}
	for name, answers := range map[string]string{"asymmetric": "10.9.0.3", "symmetric": "10.9.0.1"} {
		t.Run(name, func(t *testing.T) { gatewayAgentAway(t, answers) })
	}
}

func gatewayAgentAway(t *testing.T, answers string) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	s := setUp(ctx, t)
	route(ctx, t, s, "origin", answers)
	if out, err := s.Onpath(ctx, "apply", "-f", "testdata/counted.yaml", "--wait"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var list []onpath.Instance
	if err := s.Get(ctx, &list, "instances"); err != nil {
		t.Fatal(err)
	}
	away := "" // the gateway that runs the function
	for _, i := range list {
		if i.Spec.Node != "n1" {
			away = i.Spec.Node
		}
	}
	if away == "" {
		t.Fatal("no gateway runs the function")
	}
	route(ctx, t, s, "client", map[string]string{"gw1": "10.1.0.1", "gw2": "10.1.0.3"}[away])
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
	if err := s.Kill(away, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	goesOn := func(when string) {
		t.Helper()
		before := back.Load()
		if out, err := s.Lab.Exec(ctx, "client", "ping", "-c", "10", "-i", "0.1", "10.9.0.2"); err != nil {
			t.Errorf("%s: %v\n%s", when, err, out)
		}
		if back.Load() == before {
			t.Errorf("%s nothing comes back", when)
		}
		if out, err := s.Onpath(ctx, "verify"); err != nil {
			t.Errorf("%s: %v\n%s", when, err, out)
		}
	}
	time.Sleep(45 * time.Second)
	goesOn("45 s later")
	if out, err := s.Onpath(ctx, "apply", "-f", "testdata/more.yaml"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	time.Sleep(10 * time.Second)
	goesOn("with more instances")
	if err := s.StartNode(ctx, away); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Onpath(ctx, "apply", "-f", "testdata/more.yaml", "--wait"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	goesOn("with the agent back")
	close(stop)
	wg.Wait()
}
