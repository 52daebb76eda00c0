package node_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/runtime/fake"
)

// held is a fixture whose data path refuses generation 1 until it is let go.
func held(t *testing.T) (b *fixture, letGo func()) {
	t.Helper()
	b = newFixture(t)
	hold := true
	b.path.fail = func(c *onpath.DatapathConfig) error {
		if hold && c.Generation == 1 {
			return errors.New("not yet")
		}
		return nil
	}
	return b, func() {
		b.path.mu.Lock()
		defer b.path.mu.Unlock()
		hold = false
	}
}

// A new instance is made while its vport is not in force yet, and starts after.
func TestMadeAhead(t *testing.T) {
	b, letGo := held(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	b.until("the instance is made", func() bool { return len(b.machine.Created()) == 1 })
	if n := b.recorder.count("start web"); n != 0 {
		t.Error("it started before its vport was in force")
	}
	letGo()
	r.untilState("web", onpath.InstanceReady)
	if left := b.machine.Created(); len(left) != 0 {
		t.Errorf("made and not started: %v", left)
	}
	lines := b.recorder.all()
	start, wired := slices.Index(lines, "start web"), slices.Index(lines, "apply 1 [16:closed]")
	if wired < 0 || start < wired {
		t.Errorf("the vport is in force, closed, before the process starts; got %q", lines)
	}
	r.plan(planOf(2))
	b.gone()
}

// What was made and is not wanted any more goes without having run; also when
// the agent ends, so that the next one finds nothing half made.
func TestMadeInVain(t *testing.T) {
	b, _ := held(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	b.until("the instance is made", func() bool { return len(b.machine.Created()) == 1 })
	r.plan(planOf(2))
	b.gone()
	if left := b.machine.Created(); len(left) != 0 {
		t.Errorf("made and left: %v", left)
	}

	r.plan(planOf(1, routed("web", 16)))
	b.until("the instance is made again", func() bool { return len(b.machine.Created()) == 1 })
	r.stop()
	if left := b.machine.Created(); len(left) != 0 {
		t.Errorf("made and left by an agent that ended: %v", left)
	}
	if n := b.recorder.count("start web"); n != 0 {
		t.Errorf("it started %d times", n)
	}
	r = b.run()
	r.plan(planOf(2))
	b.gone()
}

// An instance that cannot be made is tried again after a wait, and says why and how
// often.
func TestCannotBeMade(t *testing.T) {
	b := newFixture(t)
	b.machine.Set(fake.Knobs{Create: func(context.Context, onpath.RunSpec) error {
		return onpath.Errorf(onpath.CodeInvalid, "no such program")
	}})
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	got := r.untilState("web", onpath.InstanceFailed)
	if got.Message == "" {
		t.Error("it does not say why")
	}
	b.until("its failure is told", func() bool { return slices.Contains(r.server.reasons(), "StartFailed") })
	b.until("its attempts are counted", func() bool { got, _ := r.server.instance("web"); return got.Restarts >= 2 })
	b.machine.Set(fake.Knobs{})
	r.untilState("web", onpath.InstanceReady)
	r.plan(planOf(2))
	b.gone()
}
