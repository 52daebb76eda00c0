package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node"
)

// edited changes the record of the one instance as an agent has left it.
func (b *fixture) edited(change func(map[string]any)) {
	b.t.Helper()
	files, _ := filepath.Glob(filepath.Join(b.dir, "instances", "*.json"))
	if len(files) != 1 {
		b.t.Fatalf("records: %v, want one", files)
	}
	data, err := os.ReadFile(files[0])
	must(b.t, err)
	var rec map[string]any
	must(b.t, json.Unmarshal(data, &rec))
	change(rec)
	must(b.t, os.WriteFile(files[0], []byte(mustJSON(b.t, rec)), 0o600))
}

// TestRebootWithoutRuntime: what was ready before the machine was started anew is
// not taken to be so while its runtime does not answer: nothing runs, and new
// namespaces would let all packets by. One sign of a new start is enough.
func TestRebootWithoutRuntime(t *testing.T) {
	for name, c := range map[string]struct {
		namespace bool // is gone
		boot      any  // in the record; nil: of an earlier version
		want      onpath.VportState
	}{
		"another start of the machine":              {false, "another", onpath.VportClosed},
		"only the namespace is new":                 {true, bootID(t), onpath.VportClosed},
		"an earlier version's record":               {false, nil, onpath.VportUp},
		"an earlier version's record, started anew": {true, nil, onpath.VportClosed},
		"no new start":                              {false, bootID(t), onpath.VportUp},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			r := b.run()
			r.plan(planOf(1, routed("web", 16, "10.9.0.5/24")))
			r.untilState("web", onpath.InstanceReady)
			b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
			r.stop()
			ns := b.nsOf("web")
			if c.want == onpath.VportClosed {
				must(t, b.runtime.Runtime.Remove(t.Context()))
			}
			if c.namespace {
				must(t, netnsrun.Remove(ns))
				must(t, os.WriteFile(ns, nil, 0o444))
			}
			b.edited(func(rec map[string]any) {
				if rec["boot"] != bootID(t) {
					t.Errorf("the record has the start of the machine %q", rec["boot"])
				}
				if rec["boot"] = c.boot; c.boot == nil {
					delete(rec, "boot")
				}
			})
			before := len(b.recorder.all())
			var answers atomic.Bool
			b.runtime.adopt = func() error {
				if answers.Load() {
					return nil
				}
				return errors.New("connection refused")
			}
			r = b.run()
			b.until("its devices are there", func() bool { return b.path.state(16) != "" })
			if s := b.path.state(16); s != c.want {
				t.Errorf("vport is %q while the runtime does not answer, want %s", s, c.want)
			}
			if got := r.Report().Instances[0]; (got.State == onpath.InstanceReady) != (c.want == onpath.VportUp) {
				t.Errorf("reported %s", got.State)
			}
			if c.want == onpath.VportClosed {
				for _, l := range b.recorder.all()[before:] {
					if strings.Contains(l, "16:up") {
						t.Errorf("the new agent did %q", l)
					}
				}
			}
			answers.Store(true)
			r.untilState("web", onpath.InstanceReady)
			b.until("it is open", func() bool { return b.path.state(16) == onpath.VportUp })
		})
	}
}

func bootID(t *testing.T) string {
	t.Helper()
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(t, err)
	return strings.TrimSpace(string(id))
}

// elsewhere is a runtime that has this test's process for each one that it finds.
type elsewhere struct{ told }

func (e elsewhere) Adopt(ctx context.Context) (map[string]onpath.Process, error) {
	found, err := e.told.Adopt(ctx)
	for id, p := range found {
		found[id] = misplaced{p}
	}
	return found, err
}

type misplaced struct{ onpath.Process }

func (misplaced) Pid() int { return os.Getpid() }

// TestProcessElsewhere: a process that does not live in the namespace that is wired
// sees none of its packets; it is started anew.
func TestProcessElsewhere(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	b.until("acknowledged", func() bool { return r.server.last().Plan == 1 })
	r.stop()
	b.edit = func(o *node.Options) {
		o.Runtimes = map[onpath.FunctionKind]onpath.Runtime{onpath.ContainerFunction: elsewhere{b.runtime}}
	}
	r = b.run()
	b.until("it is started anew", func() bool { return b.recorder.count("start web") == 2 })
	r.untilState("web", onpath.InstanceReady)
	lines := b.recorder.all()
	stop, closed := lastIndex(lines, "stop web"), lastIndex(lines, "apply 1 [16:closed]")
	if start := lastIndex(lines, "start web"); stop < 0 || stop > start || closed > start {
		t.Errorf("it is closed and stopped first; got\n%s", strings.Join(lines, "\n"))
	}
}
