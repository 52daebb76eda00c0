// Package limits has alerts of instances limit the sources that they name: it writes them into
// the functions whose rules believe the alert, and takes them out when their time is over.
package limits

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/events"
	"github.com/onpath/onpath/control/timer"
	"github.com/onpath/onpath/store"
)

const (
	lookEvery   = 250 * time.Millisecond // for sources whose time is over
	mostWaiting = 10_000                 // alerts; what comes above is left out
	attempts    = 5                      // to write what others write, too
)

// Options of Limits.
type Options struct {
	Store  onpath.Store
	Clock  onpath.Clock
	After  timer.After
	Events *events.Log
	Log    *slog.Logger
}

// Limits follows alerts. Make one with New.
type Limits struct {
	o    Options
	wake chan struct{}

	mu        sync.Mutex
	functions map[onpath.Key]*onpath.Function // that have rules
	alerts    []onpath.Notification
}

// New makes Limits that know nothing yet.
func New(o Options) *Limits { return &Limits{o: o, wake: make(chan struct{}, 1)} }

// Note takes up the functions that have rules.
func (l *Limits) Note(objects map[onpath.Key]onpath.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := len(l.functions)
	l.functions = map[onpath.Key]*onpath.Function{}
	for k, o := range objects {
		if f, ok := o.(*onpath.Function); ok && len(f.Spec.Alerts)+len(f.Status.Limited) > 0 {
			l.functions[k] = f
		}
	}
	if had == 0 && len(l.functions) > 0 {
		l.ring()
	}
}

// ring has Run look.
func (l *Limits) ring() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Alert takes notifications; the sources that they name are limited soon after.
func (l *Limits) Alert(list []onpath.Notification) {
	l.mu.Lock()
	if room := mostWaiting - len(l.alerts); len(l.functions) > 0 {
		l.alerts = append(l.alerts, list[:min(len(list), room)]...)
	}
	l.mu.Unlock()
	l.ring()
}

// Run writes whom alerts limit, until ctx ends.
func (l *Limits) Run(ctx context.Context) {
	for ctx.Err() == nil {
		var look <-chan time.Time
		if l.limiting() {
			look = l.o.After(lookEvery)
		}
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-look:
		}
		l.mu.Lock()
		alerts, functions := l.alerts, l.functions
		l.alerts = nil
		l.mu.Unlock()
		for k, f := range functions {
			if news := believed(f, alerts); len(news) > 0 || over(f, l.o.Clock()) {
				l.update(ctx, k, news)
			}
		}
	}
}

// limiting reports whether the time of a source may come to its end.
func (l *Limits) limiting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.functions {
		if len(f.Status.Limited) > 0 {
			return true
		}
	}
	return false
}

// source is what an alert has limited, and for how long.
type source struct {
	onpath.LimitedSource
	lasts time.Duration
}

// believed are sources that alerts have a function limit.
func believed(f *onpath.Function, alerts []onpath.Notification) (list []source) {
	const suffix = 6 // of an instance's name, behind its deployment's
	for i := range alerts {
		n := &alerts[i]
		if len(n.Instance) <= suffix {
			continue
		}
		if a, lasts, ok := f.Limits(n.Tenant+"/"+n.Instance[:len(n.Instance)-suffix], n); ok {
			list = append(list, source{onpath.LimitedSource{Address: a, Alert: n.Title}, lasts})
		}
	}
	return list
}

// over reports whether a source has had its time.
func over(f *onpath.Function, now time.Time) bool {
	return slices.ContainsFunc(f.Status.Limited, func(s onpath.LimitedSource) bool { return !s.Until.After(now) })
}

// update writes a function's sources as they are now.
func (l *Limits) update(ctx context.Context, k onpath.Key, news []source) {
	for range attempts {
		o, err := l.o.Store.Get(ctx, k)
		f, ok := o.(*onpath.Function)
		if err != nil || !ok {
			return // it is deleted, or the next look finds the store again
		}
		f = onpath.Clone(o).(*onpath.Function)
		begun, ended, changed := limitSources(&f.Status, news, l.o.Clock())
		if !changed {
			return
		}
		change := onpath.Change{Key: k, Object: f, Version: f.Metadata.Version}
		_, err = l.o.Store.Write(store.FollowUp(ctx), onpath.Batch{Changes: []onpath.Change{change}})
		if onpath.CodeOf(err) == onpath.CodeConflict {
			continue
		}
		if err != nil {
			l.o.Log.Error("whom alerts limit cannot be written", "function", k.String(), "err", err)
			return
		}
		l.mu.Lock()
		l.functions[k] = f
		l.mu.Unlock()
		for _, s := range begun {
			l.tell(ctx, k, "Limited", "limits "+s.String())
		}
		for _, s := range ended {
			l.tell(ctx, k, "LimitEnded", "no longer limits "+s.Address.String())
		}
		return
	}
}

// tell has it in the events, and in the operator's log.
func (l *Limits) tell(ctx context.Context, k onpath.Key, reason, message string) {
	l.o.Events.Tell(k, reason, message, false)
	log, ok := l.o.Store.(interface {
		Note(ctx context.Context, e onpath.LogEntry) error
	})
	if !ok {
		return
	}
	if err := log.Note(ctx, onpath.LogEntry{What: onpath.LogLimit, Tenant: k.Tenant, Object: k.String(), Message: message}); err != nil {
		l.o.Log.Error("it is not in the log whom alerts limit", "function", k.String(), "what", message, "err", err)
	}
}

// limitSources adds sources to the limited ones, and drops the ones whose time is over. One that is
// limited stays so for longer; of that little is written.
func limitSources(s *onpath.FunctionStatus, news []source, now time.Time) (begun, ended []onpath.LimitedSource, changed bool) {
	kept := s.Limited[:0:0]
	for _, x := range s.Limited {
		if x.Until.After(now) {
			kept = append(kept, x)
		} else {
			ended = append(ended, x)
		}
	}
	for _, n := range news {
		n.Until = now.Add(n.lasts).UTC().Truncate(time.Millisecond)
		i := slices.IndexFunc(kept, func(x onpath.LimitedSource) bool { return x.Address == n.Address })
		switch {
		case i < 0:
			kept, begun = append(kept, n.LimitedSource), append(begun, n.LimitedSource)
		case n.Until.Sub(kept[i].Until) > n.lasts/10:
			kept[i].Until, changed = n.Until, true
		}
	}
	if extra := len(kept) - onpath.MaxLimitedSources; extra > 0 {
		ended, kept = append(ended, kept[:extra]...), kept[extra:]
	}
	s.Limited = kept
	return begun, ended, changed || len(begun)+len(ended) > 0
}
