package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestAsleepSoon: a sleeping container's answer to the first SYN comes soon after the time
// that its program takes when it is started by hand.
func TestAsleepSoon(t *testing.T) {
	idle(t)
	ctx := need(t, 3*time.Minute)
	s := serveTCP(t, echo)
	apply(ctx, t, asleepYAML)
	active(ctx, t, "nap")
	const runs = 20
	var hand, woken []time.Duration
	for range runs {
		if err := testbed.WaitFor(ctx, "the instance sleeps", time.Minute, func() (bool, error) { return napping(ctx) }); err != nil {
			t.Fatal(err)
		}
		hand = append(hand, byHand(ctx, t))
		began := time.Now()
		c, err := dialTCP(t, "10.9.0.2", s.port, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		woken = append(woken, time.Since(began))
		if again := retransmitted(t, c); again != 0 {
			t.Errorf("the client sent %d segments twice", again)
		}
		c.Close()
	}
	for line := range strings.Lines(testbed.Log("n1")) {
		if strings.Contains(line, "instance woke") {
			t.Log(strings.TrimSpace(line))
		}
	}
	slices.Sort(hand)
	slices.Sort(woken)
	later := woken[runs/2] - hand[runs/2]
	t.Logf("the program listens %s after its start by hand; a first SYN is answered after %s, %s later (medians of %d)",
		hand[runs/2], woken[runs/2], later, runs)
	if later > 20*time.Millisecond {
		t.Errorf("the answer comes %s later than by hand, must be within 20 ms", later)
	}
}

// byHand is how long asleepYAML's program takes from its start until it listens.
func byHand(ctx context.Context, t *testing.T) time.Duration {
	t.Helper()
	_, program, _ := strings.Cut(asleepYAML, "- $s")
	program, _, _ = strings.Cut("$s"+program, "\n")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr)
	l.Close()
	began := time.Now()
	cmd := exec.CommandContext(ctx, "perl", "-MIO::Socket::INET", "-e", strings.Replace(program, "9000", fmt.Sprint(at.Port), 1))
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	defer func() { _ = cmd.Process.Kill(); <-ended }()
	for {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			took := time.Since(began)
			c.Close()
			return took
		}
		select {
		case <-ended:
			t.Fatalf("the program, started by hand, has ended: %s", said.String())
		default:
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Microsecond)
	}
}
