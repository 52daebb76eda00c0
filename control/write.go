package control

import (
	"context"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/store"
)

// decisions are what a plan wants written.
type decisions struct {
	changes []onpath.Change
	events  []plan.Event
	short   plan.Count
}

func (d *decisions) empty() bool {
	return len(d.changes)+len(d.events) == 0 && d.short == plan.Count{}
}

// decisions turns a result into changes.
func (c *core) decisions(r *plan.Result) *decisions {
	d := &decisions{events: r.Events, short: r.Short}
	for k, o := range c.missing {
		if c.mirror.objects[k] != nil {
			delete(c.missing, k)
			continue
		}
		d.changes = append(d.changes, onpath.Change{Key: k, Object: onpath.Clone(o)})
	}
	slices.SortFunc(d.changes, func(a, b onpath.Change) int { return rank(a.Key.Kind) - rank(b.Key.Kind) })
	for _, o := range r.Own {
		d.changes = append(d.changes, onpath.Change{Key: onpath.KeyOf(o), Object: onpath.Clone(o)})
	}
	for _, o := range r.Create {
		o.Meta().UID = "" // the planner's is not unique for ever
		d.changes = append(d.changes, onpath.Change{Key: onpath.KeyOf(o), Object: o})
	}
	for _, o := range r.Update {
		o = onpath.Clone(o) // the store writes the new version into it
		stored(o)
		d.changes = append(d.changes, onpath.Change{Key: onpath.KeyOf(o), Object: o, Version: o.Meta().Version})
	}
	for _, k := range r.Delete {
		d.changes = append(d.changes, onpath.Change{Key: k, Version: c.mirror.objects[k].Meta().Version})
	}
	d.changes = append(d.changes, c.acceptances()...)
	d.changes = slices.DeleteFunc(d.changes, c.asides.has)
	if !c.writing {
		c.ids.dropAddresses(r.Used.Addresses)
	}
	if c.ids.low() && d.short == (plan.Count{}) && !d.empty() {
		d.short = plan.Count{Vports: 1, Paths: 1, Addresses: 1}
	}
	return d
}

func rank(k onpath.Kind) int { return slices.Index(onpath.Kinds(), k) }

// write carries decisions to the store and into the mirror, then has the loop
// go on with them.
func (c *Controller) write(ctx context.Context, d *decisions) {
	ctx = store.FollowUp(ctx)
	defer func() {
		c.mu.Lock()
		c.core.writing = false
		c.mu.Unlock()
		c.wake.ring()
	}()
	if d.short != (plan.Count{}) {
		if err := c.fetchIDs(ctx, d.short); err != nil {
			c.failed(ctx, "reserve ids", err)
			return
		}
	}
	for _, part := range partsOf(d.changes) {
		if err := c.writePart(ctx, part); err != nil {
			c.failed(ctx, "write decisions", err)
			return
		}
	}
	c.storing.end()
	for _, e := range d.events {
		c.events.Add(e, c.o.Clock())
	}
}

// failed says so, and gives the store time before the loop tries again.
func (c *Controller) failed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	if c.storing.note(err, c.o.Clock()) {
		c.log.Error("decisions cannot be written to the store; it is tried on", "doing", what, "err", err)
	}
	_ = c.o.After.Sleep(ctx, 200*time.Millisecond)
}

// writePart writes changes that fit into one request. If one of them was
// overtaken by somebody else's write, each is tried by itself and those
// overtaken are read again: the next plan is made from what they say now.
func (c *Controller) writePart(ctx context.Context, part []onpath.Change) error {
	_, err := c.o.Store.Write(ctx, onpath.Batch{Changes: part})
	if err == nil {
		c.took(part)
		return nil
	}
	if code := onpath.CodeOf(err); code != onpath.CodeConflict && code != onpath.CodeInvalid {
		c.core.ids.used(part) // it may have been written
		return err
	}
	for _, ch := range part {
		one := []onpath.Change{ch}
		switch _, err := c.o.Store.Write(ctx, onpath.Batch{Changes: one}); onpath.CodeOf(err) {
		case "":
			c.took(one)
		case onpath.CodeInvalid:
			c.setAside(ctx, ch, err)
		case onpath.CodeConflict:
			if err := c.reread(ctx, ch.Key); err != nil {
				return err
			}
		default:
			c.core.ids.used(one)
			return err
		}
	}
	return nil
}

// took puts what was written into the mirror.
func (c *Controller) took(changes []onpath.Change) {
	c.core.ids.used(changes)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range changes {
		if ch.Object != nil {
			c.core.mirror.put(ch.Object)
		} else {
			c.core.mirror.remove(ch.Key, 1<<62)
		}
	}
}

func (c *Controller) reread(ctx context.Context, k onpath.Key) error {
	o, err := c.o.Store.Get(ctx, k)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.core.mirror.put(o)
	case onpath.CodeOf(err) == onpath.CodeNotFound:
		c.core.mirror.remove(k, 1<<62)
	default:
		return err
	}
	return nil
}

// fetchIDs tops the reserves up, and by what was lacking.
func (c *Controller) fetchIDs(ctx context.Context, short plan.Count) error {
	first, err := c.core.ids.next(ctx, c.o.Store, short)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.core.ids.add(first, short, awaited(c.core.mirror, c.core.nodes), c.core.mirror, c.core.nodes)
}
