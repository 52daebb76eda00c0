package session

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"sort"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/onpath/onpath"
)

// Nodes is told what the nodes say. For one node the calls come one after
// another, NodeConnected first and NodeGone last; between nodes they are
// concurrent. They must not block.
type Nodes interface {
	NodeConnected(hello onpath.NodeHello)
	NodeReported(report onpath.NodeReport)
	NodeEvent(node string, event onpath.NodeEvent)
	NodeGone(node, reason string)
}

// Peer is who opens a session, as the API has authenticated it.
type Peer struct {
	// Node is the only name it may take; empty: any (the unix socket).
	Node string
	// Credential is the same for two sessions only if the same key opened them.
	Credential string
	// Grant is what the machine may say of itself; nil: anything.
	Grant *onpath.NodeGrant
	// Address is where the session comes from: ADDRESS:PORT, or for people.
	Address string
}

// Hub is the server's end of all sessions. It is safe for concurrent use.
type Hub struct {
	log   *slog.Logger
	clock onpath.Clock

	mu     sync.Mutex
	nodes  Nodes
	conns  map[string]*conn
	closed bool
}

// NewHub makes a hub; nodes may come once Attach was called.
func NewHub(log *slog.Logger, clock onpath.Clock) *Hub {
	return &Hub{log: log, clock: clock, conns: map[string]*conn{}}
}

// Attach says who is told what the nodes say. Sessions are refused before.
func (h *Hub) Attach(n Nodes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nodes = n
}

func (h *Hub) listener() Nodes {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.nodes
}

// Connected lists the nodes with a session, by name.
func (h *Hub) Connected() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	names := make([]string, 0, len(h.conns))
	for n := range h.conns {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Push gives a node its plan. It never waits: a plan that is not sent yet is
// replaced by the next. For a node without a session it does nothing; push when
// NodeConnected comes.
func (h *Hub) Push(node string, p *onpath.NodePlan) {
	if c := h.conn(node); c != nil {
		c.pushPlan(p)
	}
}

// Disconnect ends a node's session, for a node that was removed or whose
// credential was revoked.
func (h *Hub) Disconnect(node, reason string) {
	if c := h.conn(node); c != nil {
		c.end(onpath.Errorf(onpath.CodeUnavailable, "%s", reason))
	}
}

// Call has a node do op. What is written to the result goes to the node, what
// is read is its answer; see responseReader for the errors of Read. Closing it, or
// the end of ctx, cancels the operation.
func (h *Hub) Call(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error) {
	c := h.conn(node)
	if c == nil {
		e := onpath.Errorf(onpath.CodeUnavailable, "node %s is not connected", node)
		e.Remedy = "check `systemctl status onpath-node` there; its instances and their traffic go on meanwhile"
		return nil, e
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", op, err)
	}
	return c.call(ctx, op, body)
}

func (h *Hub) conn(node string) *conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns[node]
}

func (h *Hub) stopping() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.closed
}

// Close ends all sessions.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	conns := make([]*conn, 0, len(h.conns))
	for _, c := range h.conns {
		conns = append(conns, c)
	}
	h.mu.Unlock()
	var closing sync.WaitGroup
	for _, c := range conns {
		closing.Go(func() {
			c.end(onpath.Errorf(onpath.CodeUnavailable, "the server stops"))
			<-c.done
		})
	}
	closing.Wait()
}

// ServeSession turns a request into a session, and returns when that has ended.
func (h *Hub) ServeSession(w http.ResponseWriter, r *http.Request, who Peer) {
	raw, err := Accept(w, Protocol)
	if err != nil {
		h.log.Warn("session refused", "from", who.Address, "error", err)
		return
	}
	defer raw.Close()
	mux, err := yamux.Server(raw, muxConfig(h.log))
	if err != nil {
		h.log.Error("session refused", "from", who.Address, "error", err)
		return
	}
	defer mux.Close()
	c, hello, err := h.greet(mux, who)
	if err != nil {
		h.log.Warn("session refused", "from", who.Address, "error", err)
		return
	}
	h.log.Info("node connected", "node", c.node, "from", who.Address, "version", hello.Report.Version)
	c.serve(*hello)
	h.log.Info("node gone", "node", c.node, "reason", c.reason())
}

// greet hears the hello and answers it. Afterwards the node is connected.
func (h *Hub) greet(mux *yamux.Session, who Peer) (*conn, *onpath.NodeHello, error) {
	late := time.AfterFunc(handshakeTimeout, func() { _ = mux.Close() })
	defer late.Stop()
	up, err := mux.AcceptStream()
	if err != nil {
		return nil, nil, fmt.Errorf("no hello: %w", err)
	}
	var m upMessage
	if err := receive(up, &m); err != nil {
		return nil, nil, fmt.Errorf("no hello: %w", err)
	}
	if m.Hello == nil {
		return nil, nil, fmt.Errorf("the first message is no hello")
	}
	if m.Hello.Plan != nil {
		if err := m.Hello.Plan.Expand(); err != nil {
			return nil, nil, fmt.Errorf("no hello: %w", err)
		}
	}
	m.Hello.Grant = who.Grant
	if from, err := netip.ParseAddrPort(who.Address); err == nil {
		m.Hello.Seen = from.Addr().Unmap().WithZone("")
	}
	var clocks clocks
	clocks.hear(m.Time, h.clock())
	clocks.report(&m.Hello.Report)
	// Before any call can be made: the node takes the first stream for down.
	down, err := mux.OpenStream()
	if err != nil {
		return nil, nil, fmt.Errorf("no hello: %w", err)
	}
	c, err := h.register(newConn(h, mux, up, down, &m, who))
	if err != nil {
		_ = send(up, welcome{Error: worded(err)})
		_ = up.Close()
		// The node closes when it has read that; it has the time of the handshake.
		<-mux.CloseChan()
		return nil, nil, err
	}
	c.clocks = clocks
	if err := send(up, welcome{}); err != nil {
		h.unregister(c)
		close(c.done)
		return nil, nil, err
	}
	return c, m.Hello, nil
}

// enter puts c under its name if that is free; else it returns who has it.
func (h *Hub) enter(c *conn) (old *conn, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "the server stops")
	}
	if old = h.conns[c.node]; old == nil {
		h.conns[c.node] = c
	}
	return old, nil
}

func (h *Hub) unregister(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conns[c.node] == c {
		delete(h.conns, c.node)
	}
}

// tell reports something about a session as an event of its node.
func (h *Hub) tell(node, reason, message string) {
	h.log.Warn("node session", "node", node, "reason", reason, "message", message)
	h.listener().NodeEvent(node, onpath.NodeEvent{
		Time: h.clock(), About: onpath.Key{Kind: onpath.KindNode, Name: node}.String(),
		Reason: reason, Message: message, Warning: true,
	})
}
