// Package base is what the parts of an agent stand on: the state folder, the clock, waits
// between attempts, and the way of events to the server.
package base

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/onpath/onpath"
)

// Part is what each part of an agent works with. All of its fields are set once.
type Part struct {
	Node     string // the node's name
	NetNS    string // path of the namespace of underlay and uplinks; "": the process's own
	Datapath onpath.Datapath
	Dir      Dir
	Clock    Clock
	Log      *slog.Logger
	Events   *Events
	// ReportDue has the agent report soon.
	ReportDue chan struct{}

	ctx   context.Context
	tasks sync.WaitGroup
}

// Begin lets Go start goroutines, which end with ctx.
func (p *Part) Begin(ctx context.Context) { p.ctx = ctx }

// Context is that of Begin.
func (p *Part) Context() context.Context { return p.ctx }

// Go runs fn in a goroutine, for which Wait waits.
func (p *Part) Go(fn func(context.Context)) {
	p.tasks.Go(func() { fn(p.ctx) })
}

// Wait returns when all goroutines of Go have ended.
func (p *Part) Wait() { p.tasks.Wait() }

// About is the node itself, in events.
func (p *Part) About() string {
	return onpath.Key{Kind: onpath.KindNode, Name: p.Node}.String()
}

// TellInstance tells people what happened to an instance.
func (p *Part) TellInstance(in onpath.InstancePlan, warning bool, reason, format string, args ...any) {
	p.Tell(onpath.NodeEvent{
		About:  onpath.Key{Kind: onpath.KindInstance, Tenant: in.Tenant, Name: in.Name}.String(),
		Reason: reason, Message: fmt.Sprintf(format, args...), Warning: warning,
	})
}

// Tell logs an event and sends it, as soon as there is a session.
func (p *Part) Tell(e onpath.NodeEvent) {
	e.Time = p.Clock.Now()
	level := slog.LevelInfo
	if e.Warning {
		level = slog.LevelWarn
	}
	p.Log.Log(context.Background(), level, e.Message, "about", e.About, "reason", e.Reason)
	p.Events.add(e)
}

// Events keeps those that came before the first session. The zero value is ready.
type Events struct {
	mu    sync.Mutex
	to    Receiver
	early []onpath.NodeEvent
}

// Receiver is who gets events.
type Receiver interface{ Event(onpath.NodeEvent) }

// maxEarly is how many events wait for the first session.
const maxEarly = 1000

// Begin sends events to r from now on, those that came before it first.
func (e *Events) Begin(r Receiver) {
	e.mu.Lock()
	early := e.early
	e.to, e.early = r, nil
	e.mu.Unlock()
	for _, n := range early {
		r.Event(n)
	}
}

// Waiting are the events that came before the first session.
func (e *Events) Waiting() []onpath.NodeEvent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.early
}

func (e *Events) add(n onpath.NodeEvent) {
	e.mu.Lock()
	to := e.to
	if to == nil && len(e.early) < maxEarly {
		e.early = append(e.early, n)
	}
	e.mu.Unlock()
	if to != nil {
		to.Event(n)
	}
}

// Kick makes sure that the reader of ch runs once more.
func Kick(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Hash is a short hash of v's JSON.
func Hash(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic("node: hash: " + err.Error()) // only plain structs come here
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// BootID is another one after each start of the machine; "" if the kernel has none.
func BootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
