package e2e

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// TestBeginMeanwhile: connections that begin while a chain begins and ends get
// through, by it or past it, whichever elements it has.
func TestBeginMeanwhile(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	const loops, rounds, patience = 8, 3, time.Minute
	pause := 10 * time.Millisecond // or the loops take all that the machine has
	if os.Getenv("ONPATH_SOAK") != "" {
		pause = 0
	}
	s := serveTCP(t, echo)
	file := filepath.Join(t.TempDir(), "objects.yaml")
	err := os.WriteFile(file, []byte(`
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: wall}
spec: {state: none, ebpf: {object: firewall, budget: 50us, config: {default: allow, rules: drop udp port 9999}}}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: limit}
spec: {state: none, ebpf: {object: ratelimit, budget: 50us, config: {rate: 500Mbit}}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: begins}
spec:
  from: {hosts: client}
  to: any
  adopt: 1s
  through:
  - {function: wall, drain: 2s}
  - {function: hop, instances: 4, drain: 2s}
  - {function: limit, drain: 2s}
`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		earlier := losses(ctx, t)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range loops {
			wg.Go(func() {
				b := make([]byte, 64)
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					begun := time.Now()
					c, err := dialTCP(t, "10.9.0.2", s.port, patience)
					if err != nil {
						t.Errorf("round %d: connection %d, begun at %s: %v", round, n, begun.Format("05.000"), err)
						return
					}
					_ = c.SetDeadline(time.Now().Add(patience))
					if took := time.Since(begun); took > 950*time.Millisecond && retransmitted(t, c) > 0 { // a lost SYN, after a second
						t.Errorf("round %d: connection %d, begun at %s: took %v from %v", round, n, begun.Format("05.000"), took, c.LocalAddr())
					}
					err = pingPong(c, b)
					_ = c.SetLinger(0)
					c.Close()
					if err != nil {
						t.Errorf("round %d: connection %d, begun at %s: %v", round, n, begun.Format("05.000"), err)
						return
					}
					time.Sleep(pause)
				}
			})
		}
		time.Sleep(300 * time.Millisecond)
		if err := testbed.Apply(ctx, file); err != nil {
			t.Fatal(err)
		}
		active(ctx, t, "begins")
		time.Sleep(time.Second)
		deleting := time.Now()
		remove(t, file, 0)
		gone := time.Now()
		close(stop)
		wg.Wait()
		t.Logf("round %d: deleted at %s, gone at %s", round, deleting.Format("05.000"), gone.Format("05.000"))
		if t.Failed() {
			t.Logf("what was lost, by counter:\n%s", losses(ctx, t).since(earlier))
			break
		}
	}
}
