package node_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/onpath/onpath"
)

// path is a data path that only remembers. It outlives agents, as the real one.
type path struct {
	recorder *recorder

	mu      sync.Mutex
	config  *onpath.DatapathConfig
	applies int
	fail    func(*onpath.DatapathConfig) error
	flows   []onpath.FlowEntry
	removed bool
	// walking, if set, is called while flows are read, which have been by then.
	walking func()
	refused map[string]uint64
}

func (p *path) Apply(ctx context.Context, c *onpath.DatapathConfig) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applies++
	if p.fail != nil {
		if err := p.fail(c); err != nil {
			return err
		}
	}
	p.config = c
	var words []string
	for _, v := range c.Vports {
		words = append(words, fmt.Sprintf("%d:%s", v.ID, v.State))
	}
	p.recorder.tell("apply %d [%s]", c.Generation, strings.Join(words, " "))
	return nil
}

func (p *path) Watch(_ context.Context, s onpath.WatchSpec) ([]onpath.FlowCounters, error) {
	var out []onpath.FlowCounters
	for _, t := range s.Tuples {
		out = append(out, onpath.FlowCounters{Tuple: t})
	}
	return out, nil
}

func (p *path) Counters(context.Context) (*onpath.Counters, error) {
	return &onpath.Counters{Flows: 7, Vports: map[onpath.VportID]onpath.VportCounters{
		16: {In: onpath.Tally{Packets: 3, Bytes: 300}, Dropped: map[onpath.DropReason]uint64{onpath.DropSpoofed: 2}},
	}}, nil
}

// Refused is read again and again, as long as an agent runs.
func (p *path) Refused(context.Context) (map[string]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.refused), nil
}

func (p *path) Flows(_ context.Context, f onpath.FlowFilter, yield func(onpath.FlowEntry) bool) error {
	p.mu.Lock()
	flows, walking := slices.Clone(p.flows), p.walking
	p.mu.Unlock()
	if walking != nil {
		walking()
	}
	for _, e := range flows {
		if f.Matches(e) && !yield(e) {
			return nil
		}
	}
	return nil
}

func (p *path) Capture(context.Context, onpath.CaptureSpec, io.Writer) error { return nil }

func (p *path) Close() error { return nil }

func (p *path) Remove(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removed, p.config = true, nil
	p.recorder.tell("remove path")
	return nil
}

func (p *path) state(id onpath.VportID) onpath.VportState {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.config != nil {
		for _, v := range p.config.Vports {
			if v.ID == id {
				return v.State
			}
		}
	}
	return ""
}

func (p *path) uplinks() (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.config != nil && p.config.Edge != nil {
		for _, u := range p.config.Edge.Uplinks {
			names = append(names, u.Name)
		}
	}
	return names
}

// count is how often something was to be applied.
func (p *path) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applies
}

func (p *path) set(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
}
