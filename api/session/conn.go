package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/onpath/onpath"
)

// conn is the server's end of one node's session.
type conn struct {
	hub     *Hub
	mux     *yamux.Session
	up      *yamux.Stream
	down    *yamux.Stream
	node    string
	who     Peer
	agent   string        // tells its process from others; "": an older version
	expands bool          // it reads compact plans; older versions do not
	done    chan struct{} // closed after NodeGone
	calls   atomic.Uint64

	clocks clocks // of listen alone

	mu      sync.Mutex
	why     string
	plan    *onpath.NodePlan // to be sent
	cancels []uint64         // to be sent
	wake    chan struct{}    // something is to be sent
}

func newConn(h *Hub, mux *yamux.Session, up, down *yamux.Stream, m *upMessage, who Peer) *conn {
	return &conn{hub: h, mux: mux, up: up, down: down, node: m.Hello.Node, agent: m.Agent, expands: m.Expands, who: who,
		done: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// serve tells the hub's listener what the node says until the session ends.
func (c *conn) serve(hello onpath.NodeHello) {
	nodes := c.hub.listener()
	nodes.NodeConnected(hello)
	go c.speak()
	err := c.listen(nodes)
	_ = c.mux.Close()
	c.close(fmt.Sprintf("the session broke: %v", err))
	// The name is given on when this session's end is known: the next one's
	// beginning would be taken back else.
	nodes.NodeGone(c.node, c.reason())
	c.hub.unregister(c)
	close(c.done)
}

func (c *conn) listen(nodes Nodes) error {
	for {
		var m upMessage
		if err := receive(c.up, &m); err != nil {
			return err
		}
		c.clocks.hear(m.Time, c.hub.clock())
		if text := c.clocks.warning(); text != "" {
			c.hub.tell(c.node, "ClockDiffers", text)
		}
		switch {
		case m.Report != nil:
			m.Report.Node = c.node // it speaks for itself only
			c.clocks.report(m.Report)
			nodes.NodeReported(*m.Report)
		case m.Event != nil:
			c.clocks.ours(&m.Event.Time)
			nodes.NodeEvent(c.node, *m.Event)
		}
	}
}

// speak sends what is to be sent; a slow node holds up nobody but itself.
func (c *conn) speak() {
	for {
		select {
		case <-c.wake:
		case <-c.mux.CloseChan():
			return
		}
		for _, m := range c.pending() {
			if m.Plan != nil && c.expands {
				m.Plan, _ = m.Plan.Compact()
			}
			err := send(c.down, m)
			if errors.Is(err, errTooLarge) { // a session that ends would bring the same plan again
				c.hub.tell(c.node, "PlanTooLarge", fmt.Sprintf("its plan is not sent, and it goes on with the one before: %v; "+
					"spread its chains and instances over more nodes", err))
				continue
			}
			if err != nil {
				c.close(fmt.Sprintf("the session broke: %v", err))
				return
			}
		}
	}
}

func (c *conn) pending() (messages []downMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.cancels {
		messages = append(messages, downMessage{Cancel: id})
	}
	if c.plan != nil {
		messages = append(messages, downMessage{Plan: c.plan})
	}
	c.cancels, c.plan = nil, nil
	return messages
}

func (c *conn) pushPlan(p *onpath.NodePlan) {
	c.mu.Lock()
	c.plan = p
	c.mu.Unlock()
	c.signal()
}

func (c *conn) cancel(call uint64) {
	c.mu.Lock()
	c.cancels = append(c.cancels, call)
	c.mu.Unlock()
	c.signal()
}

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// farewell is how long a node may take to hear why its session ends. One that does
// closes it at once.
const farewell = 250 * time.Millisecond

// end tells the node why its session ends, and ends it.
func (c *conn) end(why *onpath.Error) {
	c.because(why.Message)
	go func() { _ = send(c.down, downMessage{End: why}) }() // ends with the session
	select {
	case <-c.mux.CloseChan():
	case <-time.After(farewell):
	}
	c.close(why.Message)
}

// close ends the session; the first reason stays.
func (c *conn) close(reason string) {
	c.because(reason)
	_ = c.mux.Close()
}

func (c *conn) because(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == "" {
		c.why = reason
	}
}

// answers reports whether the node's agent lives and answers; it takes as long as
// pingTimeout if not.
func (c *conn) answers() bool {
	_, err := c.mux.Ping()
	return err == nil
}

func (c *conn) reason() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why
}

func (c *conn) call(ctx context.Context, op onpath.NodeOp, request json.RawMessage) (io.ReadWriteCloser, error) {
	id := c.calls.Add(1)
	stream, err := c.mux.OpenStream()
	a := &responseReader{stream: stream, node: c.node, op: op, stopping: c.hub.stopping}
	if err != nil {
		return nil, a.gone(err)
	}
	if err := send(stream, callMessage{Call: id, Op: op, Request: request}); err != nil {
		_ = stream.Close()
		return nil, a.gone(err)
	}
	armed := make(chan struct{})
	var stop func() bool
	a.closed = func() { <-armed; stop(); c.cancel(id) }
	stop = context.AfterFunc(ctx, func() { _ = a.Close() })
	close(armed)
	return a, nil
}
