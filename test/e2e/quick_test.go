package e2e

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// The time that onpath may take beyond the functions' own from start to ready:
// for a new chain of three containers, and for one more instance.
const (
	newChainBound    = time.Second
	oneInstanceBound = 200 * time.Millisecond
	betweenNewFlows  = 5 * time.Millisecond
	lastNewFlow      = 30000 // source port
)

// TestNewChainIsQuick: from `onpath apply` to the first packet that crossed all
// three containers, images cached.
func TestNewChainIsQuick(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	port := udpEcho(t, "10.9.0.2")
	began := time.Now()
	steered := make(chan time.Time, 1)
	go func() { // the virtual address answers only behind the element that rewrites it
		c := dialUDP(t, "10.9.0.100", port)
		defer c.Close()
		for ctx.Err() == nil {
			if ask(c, 5*time.Millisecond) == nil {
				steered <- time.Now()
				return
			}
		}
	}()
	applyFile(ctx, t, "testdata/three.yaml")
	select {
	case at := <-steered:
		took, own := at.Sub(began), ownTimeToldBy(ctx, t, nil)
		t.Logf("the three-container chain: first steered packet after %s, of which the functions' own %s: %s beyond it",
			took.Round(time.Millisecond), own.Round(time.Millisecond), (took - own).Round(time.Millisecond))
		promised(t, "beyond the functions' own time to ready, the three-container chain", took-own, newChainBound)
	case <-time.After(time.Minute):
		t.Fatal("nothing was steered")
	}
}

// TestOneMoreInstanceIsQuick: from `onpath apply` with one more instance to the
// first packet of a new flow that it got. The least of three counts: what else
// the machine does can only make it longer.
func TestOneMoreInstanceIsQuick(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	apply(ctx, t, strings.Replace(spreadChain, "COUNT", "1", 1))
	active(ctx, t, "spread")
	ready(ctx, t, 1)
	port := udpEcho(t, "10.9.0.2")
	least, unused := time.Hour, 20000
	for n := 2; n <= 4; n++ {
		took, own := oneMore(ctx, t, port, n, &unused)
		t.Logf("instance %d: first steered packet after %s, of which the function's own %s: %s beyond it",
			n, took.Round(time.Millisecond), own.Round(time.Millisecond), (took - own).Round(time.Millisecond))
		least = min(least, took-own)
	}
	promised(t, "beyond the function's own time to ready, one more instance", least, oneInstanceBound)
}

// oneMore scales to n instances and measures until the new one has a flow. Flows begin at the
// source port that unused says, which is the next one afterwards.
func oneMore(ctx context.Context, t *testing.T, port, n int, unused *int) (took, own time.Duration) {
	t.Helper()
	old := map[string]bool{}
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		old[i.Metadata.Name] = true
	}
	file := filepath.Join(t.TempDir(), "more.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(spreadChain, "COUNT", strconv.Itoa(n), 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	flows := startNewFlows(t, port, *unused)
	began := time.Now()
	if err := testbed.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
	readyBy(ctx, t, n)
	if list, err = testbed.Instances(ctx); err != nil {
		t.Fatal(err)
	}
	var first time.Time
	for end := time.Now().Add(time.Minute); ; flows = startNewFlows(t, port, *unused) {
		time.Sleep(200 * time.Millisecond) // flows after it
		answered := flows.end()
		choices := forwardChoices(ctx, t, api(t))
		for _, i := range list {
			for p, at := range answered {
				*unused = max(*unused, int(p)+50) // the last ones may have no answer
				if !old[i.Metadata.Name] && choices[p] == i.Spec.Vport && (first.IsZero() || at.Before(first)) {
					first = at
				}
			}
		}
		if !first.IsZero() {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the new instance got none of %d flows", len(answered))
		}
	}
	return first.Sub(began), ownTimeToldBy(ctx, t, old)
}

// readyBy waits as ready does, but asks by the API itself: a program started for
// each question would take the processor from what is measured.
func readyBy(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	a := api(t)
	err := testbed.WaitFor(ctx, strconv.Itoa(n)+" instances are ready", time.Minute, func() (bool, error) {
		list, _, err := a.List(ctx, onpath.KindInstance, "")
		count := 0
		for _, o := range list {
			if i := o.(*onpath.Instance); i.Status.State == onpath.InstanceReady && i.Spec.Draining.IsZero() {
				count++
			}
		}
		return count == n, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ownTimeToldBy waits until events tell it.
func ownTimeToldBy(ctx context.Context, t *testing.T, old map[string]bool) (own time.Duration) {
	t.Helper()
	err := testbed.WaitFor(ctx, "events tell when the instances were ready", time.Minute, func() (bool, error) {
		var ok bool
		var err error
		own, ok, err = ownTime(ctx, old)
		return ok, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// ownTime is the longest that an instance which is not old took from Started to
// Ready, as events tell; ok once all have told.
func ownTime(ctx context.Context, old map[string]bool) (own time.Duration, ok bool, err error) {
	list, err := testbed.Instances(ctx)
	if err != nil {
		return 0, false, err
	}
	var events []onpath.Event
	if err := testbed.Get(ctx, &events, "events"); err != nil {
		return 0, false, err
	}
	for _, i := range list {
		if old[i.Metadata.Name] {
			continue
		}
		at := map[string]time.Time{}
		for _, e := range events {
			if strings.HasSuffix(e.Spec.About, "/"+i.Metadata.Name) {
				at[e.Spec.Reason] = e.Spec.Time
			}
		}
		started, ready := at["Started"], at["Ready"]
		if started.IsZero() || ready.IsZero() {
			return 0, false, nil
		}
		own = max(own, ready.Sub(started))
	}
	return own, true, nil
}

// newFlows are datagrams of the client, each of a flow of its own.
type newFlows struct {
	stop     chan struct{}
	wg       sync.WaitGroup
	mu       sync.Mutex
	answered map[uint16]time.Time // by source port
}

func startNewFlows(t *testing.T, port, first int) *newFlows {
	t.Helper()
	f := &newFlows{stop: make(chan struct{}), answered: map[uint16]time.Time{}}
	to := &net.UDPAddr{IP: net.ParseIP("10.9.0.2"), Port: port}
	f.wg.Go(func() {
		for p := first; p < lastNewFlow; p++ {
			select {
			case <-f.stop:
				return
			case <-time.After(betweenNewFlows):
			}
			var c *net.UDPConn
			in(t, "client", func() (err error) {
				c, err = net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP("10.1.0.2"), Port: p}, to)
				return err
			})
			f.wg.Go(func() { defer c.Close(); f.ask(c, uint16(p)) })
		}
	})
	return f
}

func (f *newFlows) ask(c *net.UDPConn, port uint16) {
	if _, err := c.Write(binary.BigEndian.AppendUint16(nil, port)); err != nil {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(make([]byte, 16)); err != nil || n != 2 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered[port] = time.Now()
}

func (f *newFlows) end() map[uint16]time.Time {
	close(f.stop)
	f.wg.Wait()
	return f.answered
}
