package wasm

import (
	"context"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
)

// lookEvery is how often an engine is asked how its modules fare.
const lookEvery = time.Second

// look asks until the engine ends.
func (p *process) look() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.ask(p.d.ctx)
		case <-p.done:
			return
		case <-p.d.ctx.Done():
			return
		}
	}
}

// ask notes what the engine says; one that does not answer has said nothing new.
func (p *process) ask(ctx context.Context) {
	s, err := p.d.Control(p.record.ID).Status(ctx)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.status = s
	p.mu.Unlock()
}

func (p *process) known() []control.ModuleStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.Modules
}

// Modules implements onpath.Modular.
func (p *process) Modules() (out []onpath.ModuleState) {
	for _, m := range p.known() {
		out = append(out, onpath.ModuleState{Name: m.Name, SHA256: m.SHA256, Out: m.Why, Traps: m.Traps})
	}
	return out
}

// ModuleCounters implements onpath.Modular. What a module declares is called own/NAME.
func (p *process) ModuleCounters() map[string]map[string]uint64 {
	out := map[string]map[string]uint64{}
	for _, m := range p.known() {
		c := map[string]uint64{
			"packets": m.Packets, "next": m.Passed, "drop": m.Dropped, "answer": m.Answered, "rewritten": m.Rewritten,
			"bypass": m.Bypassed, "refused": m.Refused, "sent": m.Sent, "traps": m.Traps,
			"fetch-failed": m.FetchFailed, "notify-lost": m.NotifyLost,
		}
		for name, n := range m.Counters {
			c["own/"+name] = n
		}
		out[m.Name] = c
	}
	return out
}
