package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/instance"
	"github.com/onpath/onpath/runtime/fake"
)

// patience is how long a test waits for what should happen soon.
const patience = 30 * time.Second

// recorder is what happened, in order, on a machine.
type recorder struct {
	mu    sync.Mutex
	lines []string
	// stopping, if set, is called before a process of the instance is stopped.
	stopping func(ctx context.Context, name string) error
}

func (s *recorder) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *recorder) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

func (s *recorder) count(line string) (n int) {
	for _, l := range s.all() {
		if l == line {
			n++
		}
	}
	return n
}

// told is a runtime that tells the recorder.
type told struct {
	onpath.Runtime
	recorder *recorder
	// adopt, if set, replaces the answer of Adopt.
	adopt func() error
	// partly has Adopt give what it found beside that error.
	partly bool
}

func (r told) Start(ctx context.Context, s onpath.RunSpec) (onpath.Process, error) {
	p, err := r.Runtime.Start(ctx, s)
	if err != nil {
		return nil, err
	}
	r.recorder.tell("start %s", s.Labels[instance.LabelInstance])
	return toldProcess{p, r.recorder}, nil
}

// Create tells only of the start: when a new instance is made is not of the recorder.
func (r told) Create(ctx context.Context, s onpath.RunSpec) (onpath.Created, error) {
	c, err := r.Runtime.(onpath.Creator).Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return toldCreated{c, r.recorder, s.Labels[instance.LabelInstance]}, nil
}

type toldCreated struct {
	onpath.Created
	recorder *recorder
	name     string
}

func (c toldCreated) Start(ctx context.Context) (onpath.Process, error) {
	p, err := c.Created.Start(ctx)
	if err != nil {
		return nil, err
	}
	c.recorder.tell("start %s", c.name)
	return toldProcess{p, c.recorder}, nil
}

func (r told) Adopt(ctx context.Context) (map[string]onpath.Process, error) {
	var away error
	if r.adopt != nil {
		if away = r.adopt(); away != nil && !r.partly {
			return nil, away
		}
	}
	found, err := r.Runtime.Adopt(ctx)
	err = errors.Join(away, err)
	for id, p := range found {
		found[id] = toldProcess{p, r.recorder}
	}
	return found, err
}

func (r told) Remove(ctx context.Context) error {
	r.recorder.tell("remove instances")
	return r.Runtime.Remove(ctx)
}

type toldProcess struct {
	onpath.Process
	recorder *recorder
}

func (p toldProcess) Stop(ctx context.Context, grace time.Duration) error {
	if p.Process.Pid() != 0 {
		p.recorder.tell("stop %s", p.Labels()[instance.LabelInstance])
	}
	if f := p.recorder.stopping; f != nil {
		if err := f(ctx, p.Labels()[instance.LabelInstance]); err != nil {
			return err
		}
	}
	return p.Process.Stop(ctx, grace)
}

// fixture is one machine: a network namespace, a data path, a runtime.
type fixture struct {
	t        *testing.T
	host     string // path of the namespace
	dir      string
	path     *path
	recorder *recorder
	machine  *fake.Machine
	runtime  told
	clock    base.Clock
	spec     onpath.NodeSpec
	edit     func(*node.Options)
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to create network namespaces and devices")
	}
	before := runtime.NumGoroutine()
	base := t.TempDir()
	s := &recorder{}
	m := fake.NewMachine()
	b := &fixture{
		t: t, host: filepath.Join(base, "host"), dir: filepath.Join(base, "state"),
		recorder: s, path: &path{recorder: s}, machine: m, runtime: told{Runtime: fake.New(m), recorder: s},
	}
	if err := netnsrun.Create(b.host); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.sweep()
		if err := netnsrun.Remove(b.host); err != nil {
			t.Error(err)
		}
		b.noGoroutines(before)
	})
	return b
}

// sweep removes what a failed test left; mounts would outlive the folder.
func (b *fixture) sweep() {
	names, _ := filepath.Glob(filepath.Join(b.dir, "netns", "*"))
	for _, n := range names {
		_ = netnsrun.Remove(n)
	}
	if b.t.Failed() {
		b.t.Logf("what happened:\n%s", strings.Join(b.recorder.all(), "\n"))
	}
}

func (b *fixture) noGoroutines(before int) {
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			b.t.Errorf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
			return
		}
	}
}

// running is an agent at work.
type running struct {
	*node.Agent
	b      *fixture
	server *server
	stop   func()
}

const nodeName = "n1"

func (b *fixture) options() node.Options {
	o := node.Options{
		Name: nodeName, Spec: b.spec, StateDir: b.dir, NetNS: b.host, Datapath: b.path, Version: "v0.0.0-test",
		Runtimes: map[onpath.FunctionKind]onpath.Runtime{onpath.ContainerFunction: b.runtime}, Clock: b.clock,
		Log: slog.New(slog.NewTextHandler(testWriter{b.t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if b.edit != nil {
		b.edit(&o)
	}
	return o
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (b *fixture) run() *running {
	b.t.Helper()
	srv := &server{recorder: b.recorder}
	o := b.options()
	o.Dial = func(ctx context.Context, _ node.Handler) node.Session {
		srv.ctx = ctx
		return srv
	}
	a, err := node.New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	r := &running{Agent: a, b: b, server: srv}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	b.t.Cleanup(r.stop)
	select {
	case <-a.Up():
	case <-time.After(patience):
		b.t.Fatal("the agent does not come up")
	}
	return r
}

func (r *running) plan(p *onpath.NodePlan) {
	r.b.t.Helper()
	if err := r.SetPlan(r.b.t.Context(), p); err != nil {
		r.b.t.Fatal(err)
	}
}

// until waits for what, which the message names.
func (b *fixture) until(message string, what func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); !what(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("not within %s: %s\n%s", patience, message, strings.Join(b.recorder.all(), "\n"))
		}
	}
}

func (r *running) untilState(name string, s onpath.InstanceState) onpath.InstanceReport {
	r.b.t.Helper()
	var got onpath.InstanceReport
	r.b.until(fmt.Sprintf("instance %s %s", name, s), func() bool {
		got, _ = r.server.instance(name)
		return got.State == s
	})
	return got
}

// gone waits until no device, namespace or record of an instance is left.
func (b *fixture) gone() {
	b.t.Helper()
	b.until("all devices, namespaces and records are gone", func() bool { return len(b.leftovers()) == 0 })
}

func (b *fixture) leftovers() (out []string) {
	for _, l := range b.links() {
		if strings.HasPrefix(l.Attrs().Name, "op") {
			out = append(out, l.Attrs().Name)
		}
	}
	for _, d := range []string{"netns", "instances"} {
		files, _ := filepath.Glob(filepath.Join(b.dir, d, "*"))
		out = append(out, files...)
	}
	return out
}

func (b *fixture) links() []netlink.Link {
	b.t.Helper()
	h := b.netlink(b.host)
	defer h.Close()
	links, err := h.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		links, err = h.LinkList()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return links
}

func (b *fixture) netlink(path string) *netlink.Handle {
	b.t.Helper()
	ns, err := netns.GetFromPath(path)
	if err != nil {
		b.t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		b.t.Fatal(err)
	}
	return h
}

// id of an instance as the runtime knows it.
func (b *fixture) id(name string) string {
	b.t.Helper()
	for _, id := range b.machine.Running() {
		if strings.HasPrefix(id, "acme-"+name+"-") {
			return id
		}
	}
	b.t.Fatalf("instance %s does not run", name)
	return ""
}

// planOf makes a plan of instances; each has its vports in the data path.
func planOf(generation uint64, instances ...onpath.InstancePlan) *onpath.NodePlan {
	p := &onpath.NodePlan{Node: nodeName, Generation: generation, Instances: instances}
	p.Datapath.Node, p.Datapath.Generation = nodeName, generation
	vports := map[onpath.VportID]onpath.Vport{}
	for _, in := range instances {
		for _, v := range []onpath.VportID{in.Vport, in.Back} {
			if v == 0 {
				continue
			}
			state := onpath.VportUp
			if in.Draining {
				state = onpath.VportDraining
			}
			vports[v] = onpath.Vport{ID: v, Kind: onpath.VportInstance, State: state, Instance: in.Tenant + "/" + in.Name}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(vports)) {
		p.Datapath.Vports = append(p.Datapath.Vports, vports[id])
	}
	return p
}

func routed(name string, v onpath.VportID, addresses ...string) onpath.InstancePlan {
	p := onpath.InstancePlan{
		Name: name, Tenant: "acme", Deployment: "d", Function: "acme/f", UID: "uid-" + name, Vport: v, MTU: 1400,
		Spec: onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: "host", Command: []string{"run"}, Attach: onpath.Routed}},
	}
	for _, a := range addresses {
		p.Addresses = append(p.Addresses, netip.MustParsePrefix(a))
	}
	return p
}
