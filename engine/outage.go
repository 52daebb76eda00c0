package engine

import (
	"context"
	"time"
)

// Backoffs of a module that left the list by itself; each is twice the one before.
const (
	firstBackoff = time.Second
	lastBackoff  = time.Minute
)

// out reports whether the module is out of service.
func (m *module) out() bool { return m.broken }

// takeOut takes a module out of service; the others notice nothing.
func (e *Engine) takeOut(m *module, why error) {
	o := e.outs[m.spec.Name]
	if o == nil {
		o = &outage{}
		e.outs[m.spec.Name] = o
	}
	m.broken = true
	m.numbers.Traps++
	o.why = why.Error()
	o.again = time.Now().Add(min(lastBackoff, firstBackoff<<min(o.times, 10)))
	o.times++
	e.log.Warn("a module is out of service", "module", m.spec.Name, "why", o.why, "again", time.Until(o.again).Round(time.Second))
	m.close()
}

// retry makes modules anew whose backoff is over, beside the packets.
func (e *Engine) retry() {
	for _, m := range e.list {
		o := e.outs[m.spec.Name]
		if !m.out() || o == nil || o.busy || time.Now().Before(o.again) {
			continue
		}
		o.busy = true
		go e.renew(m, o)
	}
}

func (e *Engine) renew(old *module, o *outage) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*compiling)
	defer cancel()
	e.changing.Lock()
	defer e.changing.Unlock()
	fresh, err := load(ctx, old.spec, e.hostFor(ctx, old.spec))
	_ = e.do(ctx, func() {
		o.busy = false
		for i, m := range e.list {
			switch {
			case m != old:
			case err != nil:
				o.why = err.Error()
				o.again = time.Now().Add(lastBackoff)
				return
			default:
				fresh.numbers = old.numbers
				e.list[i] = fresh
				e.log.Info("a module is in service again", "module", fresh.spec.Name)
				return
			}
		}
		if fresh != nil {
			fresh.close() // it was taken off the list meanwhile
		}
	})
}
