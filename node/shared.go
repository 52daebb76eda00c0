package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/onpath/onpath"
)

// shared is what all parts of an agent work with.
type shared struct {
	opt    Options
	log    *slog.Logger
	clock  Clock
	state  state
	report chan struct{} // a report is due
	events events
	// wanted is the newest plan; nil: there is none yet. It takes Agent.mu.
	wanted func() *onpath.NodePlan

	ctx   context.Context // of Run
	tasks sync.WaitGroup
}

func (s *shared) goDo(fn func(context.Context)) {
	s.tasks.Go(func() { fn(s.ctx) })
}

// events keeps those that came before the first session.
type events struct {
	mu      sync.Mutex
	session Session
	early   []onpath.NodeEvent
}

// maxEarly is how many events wait for the first session.
const maxEarly = 1000

// begin takes the session, and gives the events that came before it.
func (e *events) begin(s Session) []onpath.NodeEvent {
	e.mu.Lock()
	defer e.mu.Unlock()
	early := e.early
	e.session, e.early = s, nil
	return early
}

// current is the session; nil: there is none yet.
func (e *events) current() Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.session
}

// add sends an event, or keeps it for the first session.
func (e *events) add(n onpath.NodeEvent) {
	e.mu.Lock()
	s := e.session
	if s == nil && len(e.early) < maxEarly {
		e.early = append(e.early, n)
	}
	e.mu.Unlock()
	if s != nil {
		s.Event(n)
	}
}

// event tells people what happened to an instance.
func (s *shared) event(p onpath.InstancePlan, warning bool, reason, format string, args ...any) {
	s.tell(onpath.NodeEvent{
		About:  onpath.Key{Kind: onpath.KindInstance, Tenant: p.Tenant, Name: p.Name}.String(),
		Reason: reason, Message: fmt.Sprintf(format, args...), Warning: warning,
	})
}

// about is the node itself, in events.
func (s *shared) about() string {
	return onpath.Key{Kind: onpath.KindNode, Name: s.opt.Name}.String()
}

// tell logs an event and sends it, as soon as there is a session.
func (s *shared) tell(e onpath.NodeEvent) {
	e.Time = s.clock.Now()
	level := slog.LevelInfo
	if e.Warning {
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, e.Message, "about", e.About, "reason", e.Reason)
	s.events.add(e)
}
