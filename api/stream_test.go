package api_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/api/wire"
)

// endless is a node whose answers have no end: it begins each, and goes on until
// nobody wants it any more.
type endless struct {
	asked chan<- string // each operation that begins
}

func (endless) Plan(context.Context, *onpath.NodePlan) {}

func (e endless) Serve(ctx context.Context, op onpath.NodeOp, _ json.RawMessage, stream io.ReadWriteCloser) error {
	e.asked <- string(op)
	switch op {
	case onpath.OpLogs:
		_, _ = stream.Write([]byte("a line\n"))
	case onpath.OpCapture:
		b := append(pcapBlock(0x0a0d0d0a, 16), pcapBlock(1, 8)...)
		b = append(b, pcapBlock(6, 100)...)
		_, _ = stream.Write(append(b, pcapBlock(6, 100)[:50]...)) // and half of one
	case onpath.OpFlows:
		_ = json.NewEncoder(stream).Encode(onpath.FlowEntry{Vport: 42})
	}
	<-ctx.Done()
	return nil
}

// pcapBlock is a pcapng block with so many bytes in it.
func pcapBlock(kind uint32, body int) []byte {
	b := make([]byte, 12+body)
	binary.LittleEndian.PutUint32(b, kind)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)))
	binary.LittleEndian.PutUint32(b[8:], 0x1a2b3c4d)
	binary.LittleEndian.PutUint32(b[8+body:], uint32(len(b)))
	return b
}

// TestStreamsCutShort: a stream whose node or server goes away in the middle has not
// ended well, whatever the stream and however they go.
func TestStreamsCutShort(t *testing.T) {
	type cut struct {
		name string
		do   func(w *world, end, sever func())
		want string // with the stream in the place of %
	}
	cuts := []cut{
		{"agent told to end", func(_ *world, end, _ func()) { end() }, "node n1 went away during %"},
		{"agent killed", func(_ *world, _, sever func()) { sever() }, "node n1 went away during %"},
		{"server told to end", func(w *world, _, _ func()) { w.stop() }, "the server stop"},
	}
	streams := map[string]func(ctx context.Context, c *client.Client, out io.Writer) error{
		"logs": func(ctx context.Context, c *client.Client, out io.Writer) error {
			return c.Logs(ctx, "acme", "web-1", client.LogsOptions{Tail: -1, Follow: true}, out)
		},
		"capture": func(ctx context.Context, c *client.Client, out io.Writer) error {
			return c.Capture(ctx, client.CaptureAt{Instance: "acme/web-1"}, out)
		},
		"flows": func(ctx context.Context, c *client.Client, out io.Writer) error {
			return c.Flows(ctx, client.FlowsOf{Node: "n1"}, func(wire.Flow) bool { _, _ = out.Write([]byte("x")); return true })
		},
		"exec": func(ctx context.Context, c *client.Client, out io.Writer) error {
			_, _ = out.Write([]byte("x"))
			_, err := c.Exec(ctx, "acme", "web-1", []string{"sleep"}, false, session.ExecIO{Stdout: out})
			return err
		},
	}
	for _, cut := range cuts {
		for name, stream := range streams {
			t.Run(cut.name+"/"+name, func(t *testing.T) {
				w := newWorld(t)
				end, sever := w.endlessNode()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				out := &begun{begun: make(chan struct{})}
				ended := make(chan error, 1)
				go func() { ended <- stream(ctx, client.Unix(w.dir+"/server.sock"), out) }()
				select {
				case <-out.begun:
				case err := <-ended:
					t.Fatalf("it ended before it was cut: %v", err)
				}
				w.begun(string(onpath.OpExec), name == "exec")
				cut.do(w, end, sever)
				err := <-ended
				want := strings.ReplaceAll(cut.want, "%", name)
				if cut.name == "server told to end" && name == "exec" {
					want = "" // its connection may break before the reason is sent
				}
				if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), want) {
					t.Errorf("it ended with %v, want %q", err, want)
				}
				if name == "capture" {
					wholeBlocks(t, out.b.Bytes(), 3)
				}
			})
		}
	}
}

// TestRequestsCutShort: what a server that ends cannot answer any more is no fault of
// its own, and no node is away for it.
func TestRequestsCutShort(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, c *client.Client) error{
		"watchflow": func(ctx context.Context, c *client.Client) error {
			_, err := c.WatchFlow(ctx, onpath.Tuple{Protocol: 6, Src: addr("10.0.0.1"), Dst: addr("10.0.0.2")}, "slow")
			return err
		},
		"counters": func(ctx context.Context, c *client.Client) error { // the node does not answer
			_, err := c.Counters(ctx, "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.endlessNode()
			c := client.Unix(w.dir + "/server.sock")
			defer c.Close()
			ended := make(chan error, 1)
			go func() { ended <- ask(t.Context(), c) }()
			w.begun(map[string]string{"watchflow": "watchflow", "counters": string(onpath.OpCounters)}[name], true)
			w.cut() // sessions end last, as in the program
			err := <-ended
			if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), "the server stops; try again") {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

// endlessNode is node n1 with instance acme/web-1; end ends it, sever cuts its
// connection.
func (w *world) endlessNode() (end, sever func()) {
	w.t.Helper()
	var mu sync.Mutex
	var conns []net.Conn
	cut := false
	connect := func(ctx context.Context) (net.Conn, error) {
		c, err := w.operator.Dial(ctx)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && cut {
			_ = c.Close()
			return nil, net.ErrClosed
		}
		conns = append(conns, c)
		return c, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := session.Dial(ctx, session.Options{Connect: connect, Hello: func() onpath.NodeHello { return onpath.NodeHello{Node: "n1"} }}, endless{w.asked})
	end = func() { cancel(); <-s.Done() }
	w.t.Cleanup(end)
	<-w.nodes.connected
	o, _ := onpath.New(onpath.KindInstance)
	i := o.(*onpath.Instance)
	i.Metadata.Tenant, i.Metadata.Name = "acme", "web-1"
	i.Spec.Node, i.Spec.Vport = "n1", 42
	if _, err := w.store.Write(w.t.Context(), onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(i), Object: i}}}); err != nil {
		w.t.Fatal(err)
	}
	return end, func() {
		mu.Lock()
		defer mu.Unlock()
		cut = true
		for _, c := range conns {
			_ = c.Close()
		}
	}
}

// begun waits until the node or the controller is asked so, if it is to be, and the answer's
// connection is there.
func (w *world) begun(op string, asked bool) {
	w.t.Helper()
	for asked {
		select {
		case now := <-w.asked:
			asked = now != op
		case <-time.After(time.Minute):
			w.t.Fatalf("nobody is asked for %s", op)
		}
	}
	time.Sleep(50 * time.Millisecond)
}

// begun tells when the first bytes come.
type begun struct {
	b     bytes.Buffer
	begun chan struct{}
	once  sync.Once
}

func (w *begun) Write(p []byte) (int, error) {
	defer w.once.Do(func() { close(w.begun) })
	return w.b.Write(p)
}

// wholeBlocks checks that b is so many blocks, and nothing else.
func wholeBlocks(t *testing.T, b []byte, want int) {
	t.Helper()
	n := 0
	for ; len(b) >= 12; n++ {
		size := int(binary.LittleEndian.Uint32(b[4:]))
		if size > len(b) {
			break
		}
		b = b[size:]
	}
	if n != want || len(b) > 0 {
		t.Errorf("the capture has %d whole blocks and %d bytes behind, want %d and none", n, len(b), want)
	}
}
