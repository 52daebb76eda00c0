package node_test

import (
	"context"
	"slices"
	"sync"

	"github.com/onpath/onpath"
)

// server is the other end of a session that always works.
type server struct {
	recorder *recorder
	ctx      context.Context

	mu     sync.Mutex
	report onpath.NodeReport
	all    []onpath.NodeReport // that have come
	events []onpath.NodeEvent
}

func (s *server) Report(r onpath.NodeReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report = r
	s.all = append(s.all, r)
}

func (s *server) Event(e onpath.NodeEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *server) Done() <-chan struct{} { return s.ctx.Done() }

func (s *server) last() onpath.NodeReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

// since are the reports from the nth on.
func (s *server) since(n int) []onpath.NodeReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all[n:])
}

func (s *server) reasons() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		out = append(out, e.Reason)
	}
	return out
}

// told are the events.
func (s *server) told() []onpath.NodeEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

func (s *server) instance(name string) (onpath.InstanceReport, bool) {
	for _, i := range s.last().Instances {
		if i.Name == name {
			return i, true
		}
	}
	return onpath.InstanceReport{}, false
}
