package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/onpath/onpath"
)

// server is a hub behind an HTTP server on a unix socket.
type server struct {
	hub  *Hub
	http *http.Server
	path string
	said chan string // what the hub's listener was told

	hello onpath.NodeHello // the last one
}

func (s *server) NodeConnected(h onpath.NodeHello) {
	s.hello = h
	s.said <- "connected " + h.Node
}
func (s *server) NodeReported(r onpath.NodeReport) { s.said <- fmt.Sprint("report ", r.Plan) }
func (s *server) NodeEvent(node string, e onpath.NodeEvent) {
	s.said <- "event " + e.Reason
}
func (s *server) NodeGone(node, reason string) { s.said <- "gone " + node }

func (s *server) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	s.hub = NewHub(slog.New(slog.DiscardHandler), time.Now)
	s.hub.Attach(s)
	hub := s.hub
	s.http = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hub.ServeSession(w, r, Peer{Credential: r.Header.Get("Test-Credential"), Address: "test"})
	})}
	go func(h *http.Server) { _ = h.Serve(l) }(s.http)
}

func (s *server) stop() {
	_ = s.http.Close()
	s.hub.Close()
}

func newServer(t *testing.T) *server {
	s := &server{path: filepath.Join(t.TempDir(), "s"), said: make(chan string, 1000)}
	s.start(t)
	t.Cleanup(s.stop)
	return s
}

func (s *server) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-s.said:
		if got != want {
			t.Fatalf("the hub said %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("the hub did not say %q", want)
	}
}

// fakeNode is a Handler.
type fakeNode struct {
	got   chan *onpath.NodePlan // not nil: plans, whole
	plans chan uint64
	block chan struct{} // not nil: Plan waits for it
	serve func(ctx context.Context, op onpath.NodeOp, request json.RawMessage, stream io.ReadWriteCloser) error
}

func (n *fakeNode) Plan(_ context.Context, p *onpath.NodePlan) {
	generation := p.Generation
	if n.got != nil {
		n.got <- p // whoever takes the plan may change it
	}
	n.plans <- generation
	if n.block != nil {
		<-n.block
	}
}

func (n *fakeNode) Serve(ctx context.Context, op onpath.NodeOp, request json.RawMessage, stream io.ReadWriteCloser) error {
	return n.serve(ctx, op, request, stream)
}

func (s *server) dial(t *testing.T, name, credential string, h Handler) (*Session, context.CancelFunc) {
	return s.dialWith(t, credential, func() onpath.NodeHello { return onpath.NodeHello{Node: name} }, h)
}

func (s *server) dialWith(t *testing.T, credential string, hello func() onpath.NodeHello, h Handler) (*Session, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	node := Dial(ctx, Options{
		Connect: func(ctx context.Context) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", s.path)
			return &credentialConn{Conn: c, credential: credential}, err
		},
		Hello: hello,
	}, h)
	t.Cleanup(func() {
		cancel()
		select {
		case <-node.Done():
		case <-time.After(time.Minute):
			t.Error("the node's session does not end")
		}
	})
	return node, cancel
}

// credentialConn puts a header into the first write, which is the request.
type credentialConn struct {
	net.Conn
	credential string
	wrote      bool
}

func (c *credentialConn) Write(b []byte) (int, error) {
	if c.wrote {
		return c.Conn.Write(b)
	}
	c.wrote = true
	_, err := c.Conn.Write(bytes.Replace(b, []byte("\r\n"), []byte("\r\nTest-Credential: "+c.credential+"\r\n"), 1))
	return len(b), err
}

func TestReportsAndEvents(t *testing.T) {
	s := newServer(t)
	node, cancel := s.dial(t, "n1", "k", &fakeNode{plans: make(chan uint64, 10)})
	s.expect(t, "connected n1")
	node.Report(onpath.NodeReport{Plan: 7})
	s.expect(t, "report 7")
	node.Event(onpath.NodeEvent{Reason: "A"})
	s.expect(t, "event A")
	if got := s.hub.Connected(); len(got) != 1 || got[0] != "n1" {
		t.Errorf("connected: %v", got)
	}
	cancel()
	s.expect(t, "gone n1")
	for deadline := time.Now().Add(time.Minute); len(s.hub.Connected()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still connected: %v", s.hub.Connected())
		}
	}
}

// TestClocks: a node whose clock is hours off is told so, once, and what it
// reports has the server's times.
func TestClocks(t *testing.T) {
	for _, off := range []time.Duration{-5 * time.Hour, 0, 3 * time.Hour} {
		var c clocks
		now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
		event, since := now.Add(off-time.Minute), now.Add(off-time.Hour)
		for range 3 { // messages take different times
			c.hear(now.Add(off-300*time.Millisecond), now)
			c.hear(now.Add(off+900*time.Millisecond), now)
		}
		if text := c.warning(); (text != "") != (off != 0) || c.warning() != "" {
			t.Errorf("%s: warned of %q, or twice", off, text)
		}
		c.ours(&event)
		r := &onpath.NodeReport{Instances: []onpath.InstanceReport{{Since: since}, {}}, Conditions: []onpath.Condition{{Since: since}}}
		c.report(r)
		if !event.Equal(now.Add(-time.Minute)) || !r.Instances[0].Since.Equal(now.Add(-time.Hour)) || !r.Conditions[0].Since.Equal(now.Add(-time.Hour)) {
			t.Errorf("%s: event at %s, instance since %s", off, event, r.Instances[0].Since)
		}
		if !r.Instances[1].Since.IsZero() {
			t.Errorf("%s: a time that was not given is %s", off, r.Instances[1].Since)
		}
		c.hear(now, now) // set right
		c.ours(&now)
		if c.ahead != 0 {
			t.Errorf("still %s ahead", c.ahead)
		}
	}
}

func TestPushLatestWins(t *testing.T) {
	s := newServer(t)
	n := &fakeNode{plans: make(chan uint64, 100), block: make(chan struct{})}
	s.dial(t, "n1", "k", n)
	s.expect(t, "connected n1")
	big := strings.Repeat("x", 1<<20)  // fills the stream's window: the node is slow
	for g := uint64(1); g <= 50; g++ { // none waits for the node, which takes no more until the end
		s.hub.Push("n1", &onpath.NodePlan{Node: big, Generation: g})
		if g == 1 {
			if got := <-n.plans; got != 1 {
				t.Fatalf("first plan %d", got)
			}
		}
	}
	s.hub.Push("nobody", &onpath.NodePlan{})
	close(n.block)
	seen := 1
	for last := uint64(1); last != 50; seen++ {
		select {
		case g := <-n.plans:
			if g <= last {
				t.Fatalf("plan %d after %d", g, last)
			}
			last = g
		case <-time.After(time.Minute):
			t.Fatalf("the last plan did not come; %d was the last", last)
		}
	}
	if seen > 25 {
		t.Errorf("%d of 50 plans were handed to a node that was busy with the first", seen)
	}
}

func TestReconnects(t *testing.T) {
	s := newServer(t)
	node, _ := s.dial(t, "n1", "k", &fakeNode{plans: make(chan uint64, 10)})
	s.expect(t, "connected n1")
	s.stop()
	s.expect(t, "gone n1")
	node.Event(onpath.NodeEvent{Reason: "Meanwhile"})
	s.start(t)
	s.expect(t, "connected n1")
	s.expect(t, "event Meanwhile")
}

func TestCall(t *testing.T) {
	s := newServer(t)
	cancelled := make(chan struct{})
	n := &fakeNode{serve: func(ctx context.Context, op onpath.NodeOp, request json.RawMessage, stream io.ReadWriteCloser) error {
		switch op {
		case onpath.OpCounters:
			_, err := io.Copy(stream, strings.NewReader(strings.Repeat("c", 200_000)+string(request)))
			return err
		case onpath.OpFlows:
			_, _ = stream.Write([]byte("some"))
			return onpath.Errorf(onpath.CodeNotFound, "no such vport")
		case onpath.OpLogs:
			<-ctx.Done()
			close(cancelled)
			return ctx.Err()
		}
		return errors.New("what?")
	}}
	node, cancel := s.dial(t, "n1", "k", n)
	s.expect(t, "connected n1")
	ctx := t.Context()

	all := func(op onpath.NodeOp) (string, error) {
		c, err := s.hub.Call(ctx, "n1", op, map[string]int{"a": 1})
		if err != nil {
			return "", err
		}
		defer c.Close()
		b, err := io.ReadAll(c)
		return string(b), err
	}
	if got, err := all(onpath.OpCounters); err != nil || len(got) != 200_007 || !strings.HasSuffix(got, `{"a":1}`) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got, err := all(onpath.OpFlows); got != "some" || onpath.CodeOf(err) != onpath.CodeNotFound || err.Error() != "no such vport" {
		t.Errorf("a late failure: %q, %v", got, err)
	}
	if _, err := all(onpath.OpUsage); onpath.CodeOf(err) != onpath.CodeInternal {
		t.Errorf("an unknown failure: %v", err)
	}
	if _, err := s.hub.Call(ctx, "n2", onpath.OpLogs, nil); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("a node that is away: %v", err)
	}
	cctx, stop := context.WithCancel(ctx)
	c, err := s.hub.Call(cctx, "n1", onpath.OpLogs, nil)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, stop)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a cancelled call gave bytes")
	}
	select {
	case <-cancelled:
	case <-time.After(time.Minute):
		t.Error("the node was not told that the call is cancelled")
	}
	cancelled = make(chan struct{})
	if c, err = s.hub.Call(ctx, "n1", onpath.OpLogs, nil); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, cancel) // the node goes
	if _, err := io.ReadAll(c); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("the node went away: %v", err)
	}
	<-node.Done()
}

func TestExec(t *testing.T) {
	s := newServer(t)
	resized := make(chan onpath.WindowSize, 1)
	n := &fakeNode{serve: func(ctx context.Context, op onpath.NodeOp, request json.RawMessage, stream io.ReadWriteCloser) error {
		return ServeExec(ctx, stream, func(ctx context.Context, e ExecIO) (int, error) {
			if string(request) == `"fail"` {
				return 0, onpath.Errorf(onpath.CodeNotFound, "no such program")
			}
			resized <- <-e.Resize
			n, err := io.Copy(e.Stdout, e.Stdin)
			fmt.Fprintf(e.Stderr, "%d bytes", n)
			return 42, err
		})
	}}
	s.dial(t, "n1", "k", n)
	s.expect(t, "connected n1")
	run := func(request string, in io.Reader) (int, string, string, error) {
		c, err := s.hub.Call(t.Context(), "n1", onpath.OpExec, request)
		if err != nil {
			return 0, "", "", err
		}
		defer c.Close()
		var out, errs bytes.Buffer
		sizes := make(chan onpath.WindowSize, 1)
		sizes <- onpath.WindowSize{Rows: 24, Columns: 80}
		exit, err := RunExec(t.Context(), c, ExecIO{Stdin: in, Stdout: &out, Stderr: &errs, Resize: sizes})
		return exit, out.String(), errs.String(), err
	}
	input := strings.Repeat("0123456789", 100_000)
	exit, out, errs, err := run("cat", strings.NewReader(input))
	if err != nil || exit != 42 || out != input || errs != "1000000 bytes" {
		t.Errorf("exit %d, %d bytes, %q, %v", exit, len(out), errs, err)
	}
	if got := <-resized; got != (onpath.WindowSize{Rows: 24, Columns: 80}) {
		t.Errorf("resized to %v", got)
	}
	if _, _, _, err = run("fail", nil); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("got %v", err)
	}
}

// TestDeadPeerIsFound stops all bytes without closing anything, as a node that
// loses power does.
func TestDeadPeerIsFound(t *testing.T) {
	s := newServer(t)
	var mu sync.Mutex
	stalled := false
	ctx, cancel := context.WithCancel(context.Background())
	node := Dial(ctx, Options{
		Connect: func(ctx context.Context) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", s.path)
			return &stallingConn{c, &mu, &stalled}, err
		},
		Hello: func() onpath.NodeHello { return onpath.NodeHello{Node: "n1"} },
	}, &fakeNode{})
	defer func() { cancel(); <-node.Done() }()
	s.expect(t, "connected n1")
	mu.Lock()
	stalled = true
	mu.Unlock()
	began := time.Now()
	s.expect(t, "gone n1")
	if took := time.Since(began); took > 10*time.Second && os.Getenv("ONPATH_SOAK") != "" { // a busy machine takes longer
		t.Errorf("a dead node was found after %s", took)
	}
	mu.Lock()
	stalled = false
	mu.Unlock()
	s.expect(t, "connected n1")
}

// stallingConn swallows what is written while it is stalled.
type stallingConn struct {
	net.Conn
	mu      *sync.Mutex
	stalled *bool
}

func (c *stallingConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	stalled := *c.stalled
	c.mu.Unlock()
	if stalled {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// TestPlanTooLarge: a plan that no message holds is told of; the session goes on, and so do
// later plans.
func TestPlanTooLarge(t *testing.T) {
	s := newServer(t)
	h := &fakeNode{plans: make(chan uint64, 10)}
	s.dial(t, "n1", "k", h)
	s.expect(t, "connected n1")
	s.hub.Push("n1", &onpath.NodePlan{Generation: 1, Instances: []onpath.InstancePlan{{Name: strings.Repeat("x", maxMessage)}}})
	s.expect(t, "event PlanTooLarge")
	s.hub.Push("n1", &onpath.NodePlan{Generation: 2})
	if g := <-h.plans; g != 2 {
		t.Errorf("plan %d arrives", g)
	}
}

// TestPlanHasContentsOnce: 48 firewalls with one list of 100,000 addresses, which together would
// be more than a message holds, reach a node and come back in its hello, each with its list. An
// older agent, which does not read such, is told nothing, and an event says so.
func TestPlanHasContentsOnce(t *testing.T) {
	list := strings.Repeat("192.0.2.123/32\n", 100_000)
	reserved := onpath.FunctionSpec{Container: &onpath.ContainerSpec{Files: map[string]onpath.File{"/etc/list": {Content: list}}}}
	plan := &onpath.NodePlan{Generation: 7, Prepare: []onpath.FunctionSpec{reserved}}
	for i := range 48 {
		files := map[string]onpath.File{"blocklist": {Content: list, Mode: 0o600}, "own": {Content: fmt.Sprint(i)}}
		spec := onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Files: files}}
		plan.Instances = append(plan.Instances, onpath.InstancePlan{Name: fmt.Sprint("fw-", i), Spec: spec})
	}
	s := newServer(t)
	h := &fakeNode{plans: make(chan uint64, 1), got: make(chan *onpath.NodePlan, 1)}
	inForce := &onpath.NodePlan{}
	hello := func() onpath.NodeHello { return onpath.NodeHello{Node: "n1", Plan: inForce} }
	_, leave := s.dialWith(t, "k", hello, h)
	s.expect(t, "connected n1")
	s.hub.Push("n1", plan)
	got := <-h.got
	if got.Generation = plan.Generation; !reflect.DeepEqual(got, plan) {
		t.Fatal("another plan arrives than was sent")
	}
	leave()
	s.expect(t, "gone n1")
	inForce = got
	s.dialWith(t, "k", hello, h)
	s.expect(t, "connected n1")
	if back := s.hello.Plan; !reflect.DeepEqual(back, plan) {
		t.Fatal("another plan comes back than is in force")
	}

	defer s.older(t, "n2").Close()
	s.expect(t, "connected n2")
	s.hub.Push("n2", plan)
	s.expect(t, "event PlanTooLarge")
}

// older connects as an agent of a version that reads no compact plans.
func (s *server) older(t *testing.T, name string) io.Closer {
	t.Helper()
	raw, err := net.Dial("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = Upgrade(t.Context(), raw, http.MethodGet, Path, Protocol); err != nil {
		t.Fatal(err)
	}
	mux, err := yamux.Client(raw, muxConfig(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	up, err := mux.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(send(up, upMessage{Agent: "old", Hello: &onpath.NodeHello{Node: name}}), receive(up, &welcome{})); err != nil {
		t.Fatal(err)
	}
	return mux
}
