package look_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/look"
)

// node answers each filter with an entry of its tuple.
type node struct {
	mu        sync.Mutex
	questions int
	old       bool // it knows no OpLook
	away      bool
}

type stream struct{ *bytes.Buffer }

func (stream) Close() error { return nil }

func (n *node) call(_ context.Context, _ string, op onpath.NodeOp, request any) (io.ReadWriteCloser, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.questions++
	if n.away {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "node n1 is not connected")
	}
	var b bytes.Buffer
	counters := &onpath.Counters{Flows: uint64(n.questions)}
	entry := func(f onpath.FlowFilter) onpath.FlowEntry { return onpath.FlowEntry{Tuple: *f.Tuple} }
	switch enc := json.NewEncoder(&b); {
	case op == onpath.OpLook && n.old:
		return nil, onpath.Errorf(onpath.CodeUnsupported, "no look")
	case op == onpath.OpLook:
		l := onpath.Look{Counters: counters}
		for _, f := range request.(onpath.LookRequest).Flows {
			l.Flows = append(l.Flows, []onpath.FlowEntry{entry(f)})
		}
		_ = enc.Encode(l)
	case op == onpath.OpCounters:
		_ = enc.Encode(counters)
	case op == onpath.OpFlows:
		_ = enc.Encode(entry(request.(onpath.FlowFilter)))
	}
	return stream{&b}, nil
}

func tuple(port int) onpath.Tuple {
	return onpath.Tuple{Protocol: 6, Src: netip.MustParseAddr("10.1.0.1"), Dst: netip.MustParseAddr("10.9.0.2"), DstPort: uint16(port)}
}

// TestOneQuestion: twenty who look again and again, each at a flow of its own or of two at
// another one's, and one who wants counters alone, put one question a second.
func TestOneQuestion(t *testing.T) {
	n := &node{}
	s := look.New(n.call)
	began := time.Now()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for range 2 {
				port := tuple(1 + i/2)
				seen, err := s.Ask(t.Context(), "n1", &onpath.FlowFilter{Tuple: &port})
				if err != nil || seen.Counters == nil || len(seen.Flows) != 1 || seen.Flows[0].Tuple != port {
					t.Errorf("%v: %+v, %v", port, seen, err)
				}
			}
		})
	}
	wg.Go(func() {
		if seen, err := s.Ask(t.Context(), "n1", nil); err != nil || seen.Counters == nil || seen.Flows != nil {
			t.Errorf("%+v, %v", seen, err)
		}
	})
	wg.Wait()
	// The first question is that of whoever came first; the others wait for the next ones.
	if most := 1 + int(time.Since(began)/time.Second); n.questions > most {
		t.Errorf("%d questions, must be at most %d", n.questions, most)
	}
}

// TestOlder: a node whose agent does not know the question is asked in two.
func TestOlder(t *testing.T) {
	n := &node{old: true}
	port := tuple(80)
	seen, err := look.New(n.call).Ask(t.Context(), "n1", &onpath.FlowFilter{Tuple: &port})
	if err != nil || seen.Counters == nil || len(seen.Flows) != 1 || seen.Flows[0].Tuple != port {
		t.Errorf("%+v, %v", seen, err)
	}
}

// TestAway: who asks hears why a node does not answer, and who gives up does not wait.
func TestAway(t *testing.T) {
	n := &node{away: true}
	s := look.New(n.call)
	if _, err := s.Ask(t.Context(), "n1", nil); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("a node that is away: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Ask(ctx, "n1", nil); err == nil {
		t.Error("a request that has ended got an answer")
	}
}
