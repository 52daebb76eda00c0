// Package events keeps what happened, for those whom it is about.
package events

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/timer"
	"github.com/onpath/onpath/plan"
)

// Log keeps the last events of each tenant in the store. Repeats of an
// event are counted in the one that is there. Writing happens in the
// background: telling what happened must not hold up doing something about it.
type Log struct {
	store onpath.Store
	clock onpath.Clock
	after timer.After
	log   *slog.Logger
	keep  int

	mu     sync.Mutex
	byKey  map[eventKey]*onpath.Event
	tenant map[string][]*onpath.Event // oldest first
	dirty  map[*onpath.Event]bool
	gone   []onpath.Key
	serial uint64
	wake   chan struct{}
}

// eventKey tells repeats.
type eventKey struct {
	tenant, about, node, reason, message string
}

// Options of a Log.
type Options struct {
	Store onpath.Store
	Clock onpath.Clock
	After timer.After
	Log   *slog.Logger
	Keep  int // so many of each tenant
}

// New makes a log that is empty.
func New(o Options) *Log {
	return &Log{
		store: o.Store, clock: o.Clock, after: o.After, log: o.Log, keep: o.Keep, byKey: map[eventKey]*onpath.Event{},
		tenant: map[string][]*onpath.Event{}, dirty: map[*onpath.Event]bool{}, wake: make(chan struct{}, 1),
	}
}

func keyOf(e *onpath.Event) eventKey {
	return eventKey{e.Metadata.Tenant, e.Spec.About, e.Spec.Node, e.Spec.Reason, e.Spec.Message}
}

// Load takes up what the store has.
func (l *Log) Load(list []onpath.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.byKey) > 0 {
		return // already kept up to date here
	}
	for _, o := range list {
		e, ok := o.(*onpath.Event)
		if !ok {
			continue
		}
		l.byKey[keyOf(e)] = e
		l.tenant[e.Metadata.Tenant] = append(l.tenant[e.Metadata.Tenant], e)
	}
	for _, es := range l.tenant {
		slices.SortFunc(es, func(a, b *onpath.Event) int {
			return cmp.Or(a.Spec.Time.Compare(b.Spec.Time), strings.Compare(a.Metadata.Name, b.Metadata.Name))
		})
	}
}

// Add notes an event, or another of the same.
func (l *Log) Add(e plan.Event, at time.Time) {
	if at.IsZero() {
		at = l.clock()
	}
	at = at.UTC().Round(0)
	e.Message, e.Reason = onpath.ClipText(e.Message), onpath.ClipText(e.Reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	o := &onpath.Event{TypeMeta: onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindEvent}}
	o.Metadata.Tenant = cmp.Or(e.To, e.About.Tenant, onpath.OperatorTenant)
	if l.told(&e, at) {
		return
	}
	o.Spec = onpath.EventSpec{Time: at, About: e.About.String(), Node: e.Node, Reason: e.Reason, Message: e.Message,
		Warning: e.Warning, Count: 1}
	if twin := l.twin(o); twin != nil && o.Spec.Message == "" {
		return
	} else if twin != nil && l.byKey[keyOf(o)] == nil {
		l.reword(twin, o)
		return
	} else if twin != nil { // it happened before in these words, and is counted there
		l.remove(twin)
	}
	if old := l.byKey[keyOf(o)]; old != nil {
		old.Spec.Count++
		if old.Spec.First.IsZero() {
			old.Spec.First = old.Spec.Time
		}
		old.Spec.Time = at
		l.mark(old)
		return
	}
	l.serial++
	o.Metadata.Name = fmt.Sprintf("%s.%x-%x", trimName(e.About.Name), at.UnixNano(), l.serial)
	l.byKey[keyOf(o)] = o
	t := o.Metadata.Tenant
	l.tenant[t] = append(l.tenant[t], o)
	l.mark(o)
	for len(l.tenant[t]) > l.keep {
		l.drop(t)
	}
}

// Tell keeps an event that the server itself has to tell.
func (l *Log) Tell(about onpath.Key, reason, message string, warning bool) {
	l.Add(plan.Event{About: about, Reason: reason, Message: message, Warning: warning}, time.Time{})
}

// twinTime is how far apart a node's own event and the change of state that its
// next report brings can be.
const twinTime = 10 * time.Second

// told reports whether the node itself has just told why an instance failed.
func (l *Log) told(e *plan.Event, at time.Time) bool {
	if e.Reason != reasonFailed || e.Cause == "" {
		return false
	}
	list := l.tenant[cmp.Or(e.About.Tenant, onpath.OperatorTenant)]
	for _, old := range slices.Backward(list[max(0, len(list)-twinReach):]) {
		s := &old.Spec
		if s.Warning && s.Reason == e.Cause && s.About == e.About.String() && s.Node == e.Node && at.Sub(s.Time).Abs() <= twinTime {
			return true
		}
	}
	return false
}

// reasonFailed is that of an event about an instance whose state became failed.
const reasonFailed = "Failed"

// twin finds the other half of an event that is told twice: by the node, in
// words, and by the state that the node reports, without any.
func (l *Log) twin(e *onpath.Event) *onpath.Event {
	list := l.tenant[e.Metadata.Tenant]
	for _, old := range slices.Backward(list[max(0, len(list)-twinReach):]) {
		same := old.Spec.About == e.Spec.About && old.Spec.Node == e.Spec.Node && old.Spec.Reason == e.Spec.Reason
		if same && (old.Spec.Message == "") != (e.Spec.Message == "") && e.Spec.Time.Sub(old.Spec.Time).Abs() <= twinTime {
			return old
		}
	}
	return nil
}

// twinReach bounds how many of the latest events are looked through.
const twinReach = 64

// reword gives an event without words those of its twin.
func (l *Log) reword(e, twin *onpath.Event) {
	delete(l.byKey, keyOf(e))
	e.Spec.Message, e.Spec.Warning = twin.Spec.Message, e.Spec.Warning || twin.Spec.Warning
	l.byKey[keyOf(e)] = e
	l.mark(e)
}

// trimName shortens a name so that the event's stays within bounds.
func trimName(s string) string {
	return strings.TrimRight(s[:min(len(s), 30)], "-.")
}

func (l *Log) drop(tenant string) {
	l.remove(l.tenant[tenant][0])
}

func (l *Log) remove(e *onpath.Event) {
	t := e.Metadata.Tenant
	l.tenant[t] = slices.DeleteFunc(l.tenant[t], func(o *onpath.Event) bool { return o == e })
	delete(l.byKey, keyOf(e))
	delete(l.dirty, e)
	if e.Metadata.Version != 0 {
		l.gone = append(l.gone, onpath.KeyOf(e))
	}
}

// Forget drops all events of a tenant that is deleted.
func (l *Log) Forget(tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.tenant[tenant]) > 0 {
		l.drop(tenant)
	}
	delete(l.tenant, tenant)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Kept is how many events a tenant has.
func (l *Log) Kept(tenant string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.tenant[tenant])
}

// named finds an event that is kept; its words may have changed meanwhile.
func (l *Log) named(tenant, name string) *onpath.Event {
	for _, e := range slices.Backward(l.tenant[tenant]) {
		if e.Metadata.Name == name {
			return e
		}
	}
	return nil
}

func (l *Log) mark(e *onpath.Event) {
	l.dirty[e] = true
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run writes what was added until ctx ends.
func (l *Log) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		// A burst becomes one write.
		if l.after.Sleep(ctx, 20*time.Millisecond) != nil {
			return
		}
		for part := range slices.Chunk(l.take(), onpath.SureWrite) {
			_, err := l.store.Write(ctx, onpath.Batch{Changes: part})
			if onpath.CodeOf(err) == onpath.CodeInvalid {
				l.oneByOne(ctx, part)
				continue
			}
			if err != nil && ctx.Err() == nil {
				l.log.Warn("events not written yet", "events", len(part), "err", err)
				l.putBack(ctx, part)
				continue
			}
			l.wrote(part)
		}
	}
}

// oneByOne writes what a store refuses together, and drops what it refuses alone: one
// bad event must not hold up the others.
func (l *Log) oneByOne(ctx context.Context, part []onpath.Change) {
	for _, ch := range part {
		one := []onpath.Change{ch}
		switch _, err := l.store.Write(ctx, onpath.Batch{Changes: one}); onpath.CodeOf(err) {
		case "":
			l.wrote(one)
		case onpath.CodeInvalid:
			l.log.Warn("an event cannot be stored and is dropped", "event", ch.Key, "err", err)
			l.mu.Lock()
			if mine := l.named(ch.Key.Tenant, ch.Key.Name); mine != nil {
				l.remove(mine)
			}
			l.mu.Unlock()
		default:
			l.putBack(ctx, one)
		}
	}
}

// take returns the changes to be written.
func (l *Log) take() []onpath.Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []onpath.Change
	for e := range l.dirty {
		c := onpath.Clone(e)
		out = append(out, onpath.Change{Key: onpath.KeyOf(c), Object: c, Version: onpath.AnyVersion})
	}
	clear(l.dirty)
	slices.SortFunc(out, func(a, b onpath.Change) int { return strings.Compare(a.Key.Name, b.Key.Name) })
	for _, k := range l.gone {
		out = append(out, onpath.Change{Key: k, Version: onpath.AnyVersion})
	}
	l.gone = nil
	return out
}

// wrote notes which events the store has now, so that they are deleted there
// when they leave the ring.
func (l *Log) wrote(part []onpath.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range part {
		e, ok := c.Object.(*onpath.Event)
		if !ok {
			continue
		}
		if mine := l.named(e.Metadata.Tenant, e.Metadata.Name); mine != nil {
			mine.Metadata.Version = e.Metadata.Version
		} else {
			l.gone = append(l.gone, c.Key)
		}
	}
}

// putBack has what could not be written tried again a little later.
func (l *Log) putBack(ctx context.Context, part []onpath.Change) {
	_ = l.after.Sleep(ctx, time.Second)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range part {
		e, ok := c.Object.(*onpath.Event)
		if !ok {
			l.gone = append(l.gone, c.Key)
			continue
		}
		if mine := l.named(e.Metadata.Tenant, e.Metadata.Name); mine != nil {
			l.mark(mine)
		}
	}
}
