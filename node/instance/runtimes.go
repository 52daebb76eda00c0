package instance

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/machine"
)

// driver is the runtime of one kind, as far as it is there.
type driver struct {
	rt     onpath.Runtime // nil: could not be opened
	opened bool           // by us, and so ours to close
	err    error          // why it cannot be used now
}

// runtimes are those of the node, by kind of function.
type runtimes struct {
	part *base.Part
	open map[onpath.FunctionKind]func(context.Context) (onpath.Runtime, error)
	// exempt is asked before a runtime connects to a registry.
	exempt *machine.Exempt

	mu       sync.Mutex
	drivers  map[onpath.FunctionKind]*driver
	prepared map[string]bool // functions that are being made ready or are, by hash
}

func newRuntimes(p *base.Part, e *machine.Exempt, o Options) *runtimes {
	r := &runtimes{part: p, open: o.Open, exempt: e, drivers: map[onpath.FunctionKind]*driver{}}
	for kind, rt := range o.Runtimes {
		r.drivers[kind] = &driver{rt: rt}
	}
	for kind := range o.Open {
		if r.drivers[kind] == nil {
			r.drivers[kind] = &driver{}
		}
	}
	return r
}

const adoptTimeout = 15 * time.Second

// ask opens a runtime if it is not, and asks what runs.
func (r *runtimes) ask(ctx context.Context, kind onpath.FunctionKind) map[string]onpath.Process {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	r.mu.Lock()
	rt := r.drivers[kind].rt
	r.mu.Unlock()
	opened := rt == nil
	var found map[string]onpath.Process
	var err error
	if opened {
		if rt, err = r.open[kind](ctx); err != nil {
			rt, opened = nil, false
		}
		if c, ok := rt.(onpath.Connecting); ok && opened {
			c.BeforeConnect(r.exempt.Connects)
		}
	}
	if err == nil {
		found, err = rt.Adopt(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.drivers[kind]
	if err != nil && (d.err == nil || d.err.Error() != err.Error()) { // say it once
		r.part.Log.Error("the runtime does not answer", "runtime", kind, "err", err)
	}
	d.rt, d.err, d.opened = rt, err, d.opened || opened
	return found
}

// of is the runtime of a kind, or why there is none for an instance that it has started, or
// has not.
func (r *runtimes) of(kind onpath.FunctionKind, started bool) (onpath.Runtime, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.drivers[kind]
	switch {
	case d == nil && started: // it may well run on
		return nil, notSetUp(kind)
	case d == nil:
		return nil, onpath.Errorf(onpath.CodeUnsupported, "this node has no runtime for %s functions", cmp.Or(kind, "unknown"))
	case d.err != nil:
		return nil, onpath.Errorf(onpath.CodeUnavailable, "the %s runtime does not answer: %w", kind, d.err)
	}
	return d.rt, nil
}

func notSetUp(kind onpath.FunctionKind) error {
	return onpath.Errorf(onpath.CodeUnavailable, "the runtime for %s functions, which started it, is not set up any more", kind)
}

// down is why it cannot be known what a runtime has of an instance; nil: it can.
func (r *runtimes) down(kind onpath.FunctionKind, started bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.drivers[kind]; d != nil {
		return d.err
	}
	if started {
		return notSetUp(kind)
	}
	return nil
}

// kinds are those that are set up; failed: those that do not answer alone.
func (r *runtimes) kinds(failed bool) (list []onpath.FunctionKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for kind, d := range r.drivers {
		if !failed || d.err != nil {
			list = append(list, kind)
		}
	}
	return list
}

// condition says how the container runtime is.
func (r *runtimes) condition() onpath.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := onpath.Condition{Type: onpath.ConditionRuntime, Status: onpath.True}
	if d := r.drivers[onpath.ContainerFunction]; d == nil {
		c.Status, c.Reason = onpath.False, onpath.ReasonRuntimeMissing
		c.Message = "this node runs no container functions: no container runtime is set up"
	} else if d.err != nil {
		c.Status, c.Reason = onpath.False, onpath.ReasonRuntimeDown
		c.Message = "the container runtime does not answer: " + d.err.Error()
	}
	return c
}

// prepare makes images ready of which instances will begin here soon, each once. Where
// that fails the instance tries again.
func (r *runtimes) prepare(specs []onpath.FunctionSpec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.prepared
	r.prepared = map[string]bool{}
	for _, spec := range specs {
		key, d := base.Hash(spec), r.drivers[spec.Kind()]
		r.prepared[key] = true
		if before[key] || d == nil || d.err != nil {
			continue
		}
		rt := d.rt
		r.part.Go(func(ctx context.Context) {
			if err := rt.Prepare(ctx, &spec, func(string) {}); err != nil && ctx.Err() == nil {
				r.part.Log.Warn("an image for an instance that begins soon is not ready yet", "err", err)
			}
		})
	}
}

// close lets go of those that the agent opened.
func (r *runtimes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for kind, d := range r.drivers {
		if d.opened && d.rt != nil {
			if err := d.rt.Close(); err != nil {
				r.part.Log.Warn("cannot close the runtime", "runtime", kind, "err", err)
			}
		}
	}
}
