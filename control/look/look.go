// Package look asks nodes what they have counted and which entries flows have: a node once a
// second at most, however many want to know. What is wanted meanwhile goes along with the
// next question.
package look

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/onpath/onpath"
)

const (
	// every is how long a node is left alone after a question.
	every = time.Second
	// timeout bounds how long a node may take to answer.
	timeout = 3 * time.Second
)

// Call has a node do an operation; its answer is read from the result.
type Call func(ctx context.Context, node string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error)

// Seen is what a node answers. Others may have the same: it must not be changed.
type Seen struct {
	Counters *onpath.Counters
	Flows    []onpath.FlowEntry
}

// Shared are the questions of all who want to know. It is safe for concurrent use.
type Shared struct {
	call  Call
	mu    sync.Mutex
	nodes map[string][]*want // those that were asked within the last second, and what waits
}

// want is what one asker waits for.
type want struct {
	flows *onpath.FlowFilter
	seen  Seen
	err   error
	done  chan struct{}
}

// New shares questions that are put by call.
func New(call Call) *Shared { return &Shared{call: call, nodes: map[string][]*want{}} }

// Ask has a node say what it has counted and, unless flows is nil, which entries it selects.
func (s *Shared) Ask(ctx context.Context, node string, flows *onpath.FlowFilter) (Seen, error) {
	w := &want{flows: flows, done: make(chan struct{})}
	s.mu.Lock()
	list, asked := s.nodes[node]
	s.nodes[node] = append(list, w)
	s.mu.Unlock()
	if !asked {
		go s.serve(node)
	}
	select {
	case <-w.done:
		return w.seen, w.err
	case <-ctx.Done():
		return Seen{}, ctx.Err()
	}
}

// serve asks a node as long as somebody waits.
func (s *Shared) serve(node string) {
	for {
		s.mu.Lock()
		list := s.nodes[node]
		if len(list) == 0 {
			delete(s.nodes, node)
			s.mu.Unlock()
			return
		}
		s.nodes[node] = nil
		s.mu.Unlock()
		rest := time.After(every)
		s.ask(node, list)
		<-rest
	}
}

// question is a filter as a key of maps.
type question struct {
	filter onpath.FlowFilter
	tuple  onpath.Tuple
}

// ask puts one question for all of list.
func (s *Shared) ask(node string, list []*want) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var r onpath.LookRequest
	place := map[question]int{}
	of := func(f onpath.FlowFilter) (q question) {
		if q.filter = f; f.Tuple != nil {
			q.tuple, q.filter.Tuple = *f.Tuple, nil
		}
		return q
	}
	for _, w := range list {
		if w.flows == nil {
			continue
		}
		if _, known := place[of(*w.flows)]; !known {
			place[of(*w.flows)] = len(r.Flows)
			r.Flows = append(r.Flows, *w.flows)
		}
	}
	var got onpath.Look
	err := answer(ctx, s.call, node, onpath.OpLook, r, &got)
	if onpath.CodeOf(err) == onpath.CodeUnsupported {
		got, err = older(ctx, s.call, node, r)
	}
	if err == nil && (got.Counters == nil || len(got.Flows) != len(r.Flows)) {
		err = onpath.Errorf(onpath.CodeInternal, "node %s answered something else than was asked", node)
	}
	for _, w := range list {
		if w.err = err; err == nil {
			w.seen.Counters = got.Counters
			if w.flows != nil {
				w.seen.Flows = got.Flows[place[of(*w.flows)]]
			}
		}
		close(w.done)
	}
}

// older asks a node whose agent knows no OpLook.
func older(ctx context.Context, call Call, node string, r onpath.LookRequest) (got onpath.Look, err error) {
	if got.Counters, err = Counters(ctx, call, node); err != nil {
		return got, err
	}
	for _, f := range r.Flows {
		list, err := flows(ctx, call, node, f)
		if err != nil {
			return got, err
		}
		got.Flows = append(got.Flows, list)
	}
	return got, nil
}

// Counters asks a node at once, and for nobody else.
func Counters(ctx context.Context, call Call, node string) (*onpath.Counters, error) {
	c := new(onpath.Counters)
	return c, answer(ctx, call, node, onpath.OpCounters, nil, c)
}

func answer(ctx context.Context, call Call, node string, op onpath.NodeOp, request, to any) error {
	c, err := call(ctx, node, op, request)
	if err != nil {
		return err
	}
	defer c.Close()
	return json.NewDecoder(io.LimitReader(c, onpath.MaxNodeReply)).Decode(to)
}

func flows(ctx context.Context, call Call, node string, f onpath.FlowFilter) (list []onpath.FlowEntry, err error) {
	c, err := call(ctx, node, onpath.OpFlows, f)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for d := json.NewDecoder(io.LimitReader(c, onpath.MaxNodeReply)); len(list) < onpath.MaxLookFlows; {
		var e onpath.FlowEntry
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}
