package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/onpath/onpath/engine/control"
)

// supply is the agent, as far as it opens connections for modules: the engine may not.
type supply struct {
	mu    sync.Mutex
	conn  *net.UnixConn // nil: no agent is there
	came  chan struct{} // closed when one comes
	last  uint64
	waits map[uint64]chan supplied
}

type supplied struct {
	conn net.Conn
	err  error
}

func newSupply() *supply {
	return &supply{came: make(chan struct{}), waits: map[uint64]chan supplied{}}
}

// agentTime is how long one waits for an agent that is being replaced; writeTime how long an
// order to one may take.
const (
	agentTime = 5 * time.Second
	writeTime = time.Second
)

var errNoAgent = errors.New("the node's agent is not there")

// serve hands orders to the agent at the other end of a connection, until it ends.
func (s *supply) serve(c *net.UnixConn) {
	s.mu.Lock()
	if s.conn != nil {
		s.conn.Close()
	}
	s.conn = c
	s.forget() // the one before answers no more
	close(s.came)
	s.came = make(chan struct{})
	s.mu.Unlock()
	for {
		var g control.Given
		files, err := control.Read(c, &g)
		if err != nil {
			break
		}
		s.give(g, files)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == c {
		s.conn = nil
		s.forget()
	}
}

// forget answers all who wait. Callers hold mu.
func (s *supply) forget() {
	for id, w := range s.waits {
		delete(s.waits, id)
		w <- supplied{err: errNoAgent}
	}
}

func (s *supply) give(g control.Given, files []*os.File) {
	defer closeFiles(files)
	var got supplied
	switch {
	case g.Refused:
		got.err = &control.RefusedError{Err: errors.New(g.Error)}
	case g.Error != "":
		got.err = errors.New(g.Error)
	case len(files) != 1:
		got.err = fmt.Errorf("the agent gave %d connections for one", len(files))
	default:
		got.conn, got.err = net.FileConn(files[0])
	}
	s.mu.Lock()
	w := s.waits[g.ID]
	delete(s.waits, g.ID)
	s.mu.Unlock()
	if w == nil {
		if got.conn != nil {
			_ = got.conn.Close()
		}
		return
	}
	w <- got
}

// ask has the agent open a connection.
func (s *supply) ask(ctx context.Context, want control.Want) (net.Conn, error) {
	s.mu.Lock()
	if s.conn == nil {
		came := s.came
		s.mu.Unlock()
		select {
		case <-came:
		case <-after(agentTime):
			return nil, errNoAgent
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		s.mu.Lock()
	}
	if s.conn == nil {
		s.mu.Unlock()
		return nil, errNoAgent
	}
	s.last++
	want.ID = s.last
	w := make(chan supplied, 1)
	s.waits[want.ID] = w
	_ = s.conn.SetWriteDeadline(now().Add(writeTime))
	err := control.Write(s.conn, want, nil)
	if err != nil {
		delete(s.waits, want.ID)
		s.conn.Close()
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case got := <-w:
		return got.conn, got.err
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.waits, want.ID)
		s.mu.Unlock()
		select {
		case got := <-w:
			if got.conn != nil {
				_ = got.conn.Close()
			}
		default:
		}
		return nil, ctx.Err()
	}
}
