package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

const fillingChain = `
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: filling}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through:
  - {function: hop, instances: 2, drain: 1s}
  scaling: {metric: packets, window: 2s, ramp: RAMP, elements: {hop: {min: NUMBER, max: NUMBER}}}
`

// TestFillsUp: flows that live long stay where they are, so an instance that comes later gets up
// to ramp times its share of the new ones until it has its part of the packets, and then its
// share (Stratos §4.2). Without a ramp it gets its share at once.
func TestFillsUp(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; new flows are watched for half a minute")
	}
	ctx := need(t, 3*time.Minute)
	const second, steady = 40, 5 // new flows in a second, and seconds at the end
	for _, ramp := range []int{2, 1} {
		t.Run(fmt.Sprintf("ramp %d", ramp), func(t *testing.T) {
			text := strings.Replace(fillingChain, "RAMP", fmt.Sprint(ramp), 1)
			apply(ctx, t, strings.ReplaceAll(text, "NUMBER", "2"))
			active(ctx, t, "filling")
			ready(ctx, t, 2)
			before := hopVports(ctx, t)
			s := startLong(t, udpEcho(t, "10.9.0.2"))
			for range 5 * second {
				s.open(t)
			}
			more := filepath.Join(t.TempDir(), "more.yaml")
			if err := os.WriteFile(more, []byte(strings.ReplaceAll(text, "NUMBER", "3")), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := testbed.Apply(ctx, more); err != nil {
				t.Fatal(err)
			}
			ready(ctx, t, 3)
			var fresh onpath.VportID
			for _, v := range hopVports(ctx, t) {
				if !slices.Contains(before, v) {
					fresh = v
				}
			}
			first, ready := s.flows(), time.Now()
			for time.Since(ready) < 15*time.Second {
				s.open(t)
				time.Sleep(time.Second / second)
			}
			time.Sleep(time.Second) // the last ones speak, and are answered
			chosen := forwardChoices(ctx, t, api(t))
			share := func(from, to int) float64 {
				n := 0
				for k := from; k < to; k++ {
					if chosen[uint16(20000+k)] == fresh {
						n++
					}
				}
				return float64(n) / float64(to-from)
			}
			most, last := 0.0, s.flows()
			var shares []string
			for k := first; k+2*second <= last; k += second {
				x := share(k, k+2*second)
				most = max(most, x)
				shares = append(shares, fmt.Sprintf("%.2f", x))
			}
			end, part := share(last-steady*second, last), share(0, last)
			t.Logf("its share of the new flows of two seconds each: %s; of the last %d s %.2f; it has %.2f of all %d flows",
				strings.Join(shares, " "), steady, end, part, last)
			if ramp == 1 {
				if most > 0.52 {
					t.Errorf("without a ramp it once got %.2f of the new flows, its share is 0.33", most)
				}
				return
			}
			if most < 0.55 || most > 0.85 {
				t.Errorf("it got at most %.2f of the new flows, must get up to 0.67", most)
			}
			if end < 0.2 || end > 0.47 {
				t.Errorf("in the end it gets %.2f of the new flows, must get 0.33", end)
			}
			if part < 0.27 || part > 0.4 {
				t.Errorf("it has %.2f of all flows, must have 0.33", part)
			}
		})
	}
}

func hopVports(ctx context.Context, t *testing.T) (list []onpath.VportID) {
	t.Helper()
	instances, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range instances {
		list = append(list, i.Spec.Vport)
	}
	return list
}

// longFlows are flows each of which sends ten datagrams a second.
type longFlows struct {
	port int
	mu   sync.Mutex
	list []*net.UDPConn
}

func startLong(t *testing.T, port int) *longFlows {
	s := &longFlows{port: port}
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			s.mu.Lock()
			list := s.list
			s.mu.Unlock()
			for _, c := range list {
				_, _ = c.Write([]byte("more")) // one that is lost is no matter here
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-stopped
		for _, c := range s.list {
			c.Close()
		}
	})
	return s
}

func (s *longFlows) flows() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.list)
}

// open adds a flow.
func (s *longFlows) open(t *testing.T) {
	t.Helper()
	from := &net.UDPAddr{IP: net.ParseIP("10.1.0.2"), Port: 20000 + s.flows()}
	var c *net.UDPConn
	in(t, "client", func() (err error) {
		c, err = net.DialUDP("udp", from, &net.UDPAddr{IP: net.ParseIP("10.9.0.2"), Port: s.port})
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, c)
}
