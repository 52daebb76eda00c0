package node_test

import (
	"context"
	"slices"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/node/instance"
)

// filling is a runtime whose processes relay, and are as full as the channel says.
type filling struct {
	onpath.Runtime
	full chan onpath.RelayFullness
}

func (r filling) Start(ctx context.Context, s onpath.RunSpec) (onpath.Process, error) {
	p, err := r.Runtime.Start(ctx, s)
	return fillingProcess{p, r.full}, err
}

type fillingProcess struct {
	onpath.Process
	full chan onpath.RelayFullness
}

func (fillingProcess) Relayed(context.Context) (onpath.Relayed, error) { return onpath.Relayed{}, nil }

func (p fillingProcess) AwaitFull(ctx context.Context, was onpath.RelayFullness) (onpath.RelayFullness, error) {
	select {
	case now := <-p.full:
		return now, nil
	case <-ctx.Done():
		return was, ctx.Err()
	}
}

// TestFull: new flows pass by a relay that is full, which keeps those that it has, and the node
// says so, until it has room.
func TestFull(t *testing.T) {
	b := newFixture(t)
	full := make(chan onpath.RelayFullness)
	b.edit = func(o *node.Options) {
		o.Runtimes[onpath.ContainerFunction] = filling{b.runtime.Runtime, full}
	}
	r := b.run()
	r.plan(planOf(1, routed("one", 16), routed("two", 17)))
	r.untilState("one", onpath.InstanceReady)
	r.untilState("two", onpath.InstanceReady)
	state := func(v onpath.VportID) onpath.VportState {
		b.path.mu.Lock()
		defer b.path.mu.Unlock()
		i := slices.IndexFunc(b.path.config.Vports, func(p onpath.Vport) bool { return p.ID == v })
		if i < 0 {
			return ""
		}
		return b.path.config.Vports[i].State
	}
	fullOnes := func() (n int) {
		for _, v := range []onpath.VportID{16, 17} {
			if state(v) == onpath.VportDraining {
				n++
			}
		}
		return n
	}
	full <- onpath.RelayFullConnections // to one of them, whichever asks first
	b.until("a full relay keeps its flows and gets no new ones", func() bool { return fullOnes() == 1 })
	var name string
	b.until("the report says that it is full", func() bool {
		for _, i := range r.server.last().Instances {
			if i.Full && i.Reason == instance.ReasonRelayFull && i.State == onpath.InstanceReady && i.Message != "" {
				name = i.Name
			}
		}
		return name != ""
	})
	b.until("an event says so", func() bool { return slices.Contains(r.server.reasons(), instance.ReasonRelayFull) })
	full <- "" // one that has room says it again, or the full one has room
	full <- ""
	b.until("it takes new flows again", func() bool { return fullOnes() == 0 })
	b.until("an event says that too", func() bool { return slices.Contains(r.server.reasons(), instance.ReasonRelayOpen) })
	if i, _ := r.server.instance(name); i.State != onpath.InstanceReady {
		t.Errorf("it is %s", i.State)
	}
}
