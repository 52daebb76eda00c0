package session

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestSameName: the agent that is connected and answers keeps its node's name,
// whoever else comes, and is not disturbed.
func TestSameName(t *testing.T) {
	s := newServer(t)
	first, _ := s.dial(t, "n1", "first", &fakeNode{})
	s.expect(t, "connected n1")
	for _, credential := range []string{"thief", "first"} {
		_, cancel := s.dial(t, "n1", credential, &fakeNode{})
		s.expect(t, "event SessionRefused")
		cancel()
	}
	for end := time.Now().Add(time.Minute); !first.Connected() && time.Now().Before(end); { // the hub knew before it did
		time.Sleep(time.Millisecond)
	}
	if got := s.hub.Connected(); len(got) != 1 || !first.Connected() {
		t.Fatalf("connected: %v, the first: %v", got, first.Connected())
	}
	select {
	case got := <-s.said:
		t.Errorf("the hub said %q", got)
	case <-time.After(50 * time.Millisecond):
	}
}

// TestReplaced: an agent that does not answer gives way to another, is told so,
// and does not come back while that one lives.
func TestReplaced(t *testing.T) {
	s := newServer(t)
	var mu sync.Mutex
	stalled := false
	var said lockedBuffer
	ctx, cancel := context.WithCancel(context.Background())
	old := Dial(ctx, Options{
		Connect: func(ctx context.Context) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", s.path)
			return &stallingConn{c, &mu, &stalled}, err
		},
		Hello:  func() onpath.NodeHello { return onpath.NodeHello{Node: "n1"} },
		Logger: slog.New(slog.NewTextHandler(&said, nil)),
	}, &fakeNode{})
	defer func() { cancel(); <-old.Done() }()
	s.expect(t, "connected n1")
	mu.Lock()
	stalled = true
	mu.Unlock()
	s.dial(t, "n1", "", &fakeNode{})
	var got string
	select {
	case got = <-s.said:
	case <-time.After(time.Minute):
		t.Fatal("the newer agent is not heard of")
	}
	told := got == "event SessionReplaced"
	if told {
		s.expect(t, "gone n1")
	} else if got != "gone n1" { // the hub found by itself that it is dead
		t.Fatalf("the hub said %q", got)
	}
	s.expect(t, "connected n1")
	mu.Lock()
	stalled = false
	mu.Unlock()
	s.expect(t, "event SessionRefused")
	if got := said.String(); told && !strings.Contains(got, "another agent has joined as node n1 from test") {
		t.Errorf("the older agent says:\n%s", got)
	}
	if old.Connected() {
		t.Error("the older agent has come back")
	}
}

// TestToldWhy: a session's end has words, whoever ends it.
func TestToldWhy(t *testing.T) {
	for _, c := range []struct {
		end  func(*Hub)
		want string
	}{
		{func(h *Hub) { h.Disconnect("n1", "the node was deleted") }, "the node was deleted"},
		{(*Hub).Close, "the server stops"},
	} {
		s := newServer(t)
		var said lockedBuffer
		ctx, cancel := context.WithCancel(context.Background())
		node := Dial(ctx, Options{
			Connect: func(ctx context.Context) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", s.path)
			},
			Hello:  func() onpath.NodeHello { return onpath.NodeHello{Node: "n1"} },
			Logger: slog.New(slog.NewTextHandler(&said, nil)),
		}, &fakeNode{})
		s.expect(t, "connected n1")
		c.end(s.hub)
		s.expect(t, "gone n1")
		for began := time.Now(); !strings.Contains(said.String(), c.want); time.Sleep(time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("the node was to hear %q, and says:\n%s", c.want, said.String())
			}
		}
		cancel()
		<-node.Done()
	}
}

// TestBackoff: a node that a rival keeps away asks less and less often, and one
// whose server restarts asks soon again.
func TestBackoff(t *testing.T) {
	rival := onpath.Errorf(onpath.CodeExists, "another")
	lost := onpath.Errorf(onpath.CodeUnavailable, "away")
	var b backoff
	var waited time.Duration
	for range 10 {
		waited += b.next(0, rival)
	}
	if want := (1 + 2 + 4 + 8 + 16 + 5*30) * time.Second; waited != want {
		t.Errorf("ten refusals took %s, want %s", waited, want)
	}
	if got := b.next(time.Second, onpath.Errorf(onpath.CodeConflict, "replaced")); got != backoffRivalLongest {
		t.Errorf("replaced after a short session, it waits %s", got)
	}
	if got := b.next(time.Hour, rival); got != backoffRival {
		t.Errorf("after a long session, it waits %s", got)
	}
	for range 10 {
		b.next(0, lost)
	}
	if got := b.next(0, lost); got != backoffLongest {
		t.Errorf("a server that is away long: %s", got)
	}
	if got := b.next(time.Second, lost); got != backoffFirst {
		t.Errorf("a session that was lost: %s", got)
	}
}

// lockedBuffer is written by one goroutine and read by another.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
