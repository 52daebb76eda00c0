package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/engine/wasm"
	"github.com/onpath/onpath/internal/bpfobject"
)

// Bounds of one module.
const (
	// fuel is the steps of one event: some 10 ms of a machine of today.
	fuel = 20_000_000
	// longest is the time that one event may take.
	longest = 10 * time.Millisecond
	// patience is how many measurements in a row are above a bound before a module is too
	// slow: interrupts and neighbours, too, cost its thread time, and make one of them long.
	patience = 3
	// maxPages is the memory of a module in pages of 64 KiB, unless the instance has less.
	maxPages = 256
	// hostCalls is how often one event may ask the host.
	hostCalls = 20_000
	// compiling is the longest that a module may take to compile.
	compiling = 5 * time.Second
)

// features are WebAssembly's of version 2 without those that nobody needs here.
const features = api.CoreFeaturesV2 &^ api.CoreFeatureSIMD

// module is a module that is compiled and instantiated. All but its numbers belong to
// the engine's goroutine once it is in the list.
type module struct {
	spec   onpath.WasmModule
	sha256 string
	pick   selection
	bypass bool

	runtime wazero.Runtime
	inst    api.Module
	fuel    api.MutableGlobal
	d       *description
	packets api.Function
	timer   api.Function
	gram    api.Function
	request api.Function
	event   api.Function
	streams bool // it uses body/1
	stack   [1]uint64
	host    *host

	broken   bool          // out of service; closed
	every    time.Duration // 0: no timer
	next     time.Time
	numbers  control.ModuleNumbers
	events   uint64
	long     excess        // of events
	over     excess        // of the mean of packets
	slowTime time.Duration // of the packets since the budget was looked at
	slowN    uint64
}

// compilingGC is the growth of the heap after which garbage is collected while a module is
// compiled, percent: what a small one leaves, some 3 MB, else takes as long as compiling it.
const compilingGC = 400

// load compiles a module, beside the packets, and starts it. It is in no list yet. One is
// loaded at a time.
func load(ctx context.Context, spec onpath.WasmModule, h *host) (*module, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(compilingGC))
	m := &module{spec: spec, sha256: spec.SHA256(), pick: spec.Select, bypass: spec.None == onpath.NoneBypass, host: h}
	h.m = m
	read, err := wasm.Read(spec.Code)
	if err != nil {
		return nil, err
	}
	code, err := read.Meter(fuel)
	if err != nil {
		return nil, err
	}
	if err := m.instantiate(ctx, read, code); err != nil {
		m.close()
		return nil, err
	}
	if err := m.configure(spec.Config); err != nil {
		m.close()
		return nil, err
	}
	var started error
	err = h.e.do(ctx, func() {
		if started = m.start(); started != nil {
			m.close()
		}
	})
	if err = cmp.Or(err, started); err != nil {
		return nil, err
	}
	return m, nil
}

// start begins the module, between two batches: from now on it may ask the host.
func (m *module) start() error {
	m.host.open = true
	start := m.inst.ExportedFunction("onpath_start")
	if start == nil {
		return nil
	}
	if !signature(start, 0, 0) {
		return fmt.Errorf("onpath_start takes and gives nothing")
	}
	if err := m.call(start); err != nil {
		return fmt.Errorf("onpath_start: %w", err)
	}
	return nil
}

func (m *module) instantiate(ctx context.Context, read *wasm.Module, code []byte) error {
	pages := uint32(maxPages)
	if read.MinPages > pages {
		return fmt.Errorf("it wants %d KiB of memory; %d is the most", read.MinPages*64, pages*64)
	}
	m.runtime = wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler().WithCoreFeatures(features).
		WithMemoryLimitPages(pages).WithDebugInfoEnabled(false))
	if err := m.host.offer(ctx, m.runtime, read); err != nil {
		return err
	}
	compiled, err := compile(ctx, m.runtime, code)
	if err != nil {
		return err
	}
	m.inst, err = m.runtime.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions())
	if err != nil {
		return fmt.Errorf("instantiate: %w", err)
	}
	var ok bool
	if m.fuel, ok = m.inst.ExportedGlobal(wasm.Fuel).(api.MutableGlobal); !ok || m.inst.Memory() == nil {
		return fmt.Errorf("it exports no memory")
	}
	m.packets, m.timer = m.inst.ExportedFunction("onpath_packets"), m.inst.ExportedFunction("onpath_timer")
	m.gram, m.request = m.inst.ExportedFunction("onpath_datagram"), m.inst.ExportedFunction("onpath_request")
	m.event, m.streams = m.inst.ExportedFunction("onpath_event"), slices.Contains(read.Blocks(), "body/1")
	return m.describe()
}

// compile gives up on what takes too long. What it began goes on beside, and ends.
func compile(ctx context.Context, r wazero.Runtime, code []byte) (wazero.CompiledModule, error) {
	type result struct {
		c   wazero.CompiledModule
		err error
	}
	done := make(chan result, 1)
	go func() {
		c, err := r.CompileModule(ctx, code)
		done <- result{c, err}
	}()
	select {
	case x := <-done:
		if x.err != nil {
			return nil, fmt.Errorf("compile: %w", x.err)
		}
		return x.c, nil
	case <-time.After(compiling):
		return nil, fmt.Errorf("compiling takes more than %s", compiling)
	}
}

func (m *module) describe() error {
	f := m.inst.ExportedFunction("onpath_describe")
	if f == nil || !signature(f, 0, 1) {
		return fmt.Errorf("it does not export onpath_describe; include onpath.h")
	}
	if err := m.call(f); err != nil {
		return fmt.Errorf("onpath_describe: %w", err)
	}
	d, err := describe(m.inst.Memory(), uint32(m.stack[0]))
	if err != nil {
		return err
	}
	m.d = d
	for name, f := range map[string]api.Function{"onpath_timer": m.timer, "onpath_datagram": m.gram, "onpath_request": m.request,
		"onpath_event": m.event} {
		if f != nil && !signature(f, 0, 0) {
			return fmt.Errorf("%s takes and gives nothing", name)
		}
	}
	switch {
	case m.packets != nil && (!signature(m.packets, 1, 0) || d.packets == 0 || d.verdicts == 0):
		return fmt.Errorf("onpath_packets takes a number, and onpath_describe says where packets and verdicts are")
	case (m.gram != nil || m.request != nil || m.event != nil) && (d.buffer == 0 || d.bufferSize < 256):
		return fmt.Errorf("onpath_describe says no buffer for datagrams, requests and streams")
	}
	return nil
}

func signature(f api.Function, params, results int) bool {
	p, r := f.Definition().ParamTypes(), f.Definition().ResultTypes()
	i32 := func(t api.ValueType) bool { return t != api.ValueTypeI32 }
	return len(p) == params && len(r) == results && !slices.ContainsFunc(p, i32) && !slices.ContainsFunc(r, i32)
}

// call calls a function of the module, with m.stack, within the bounds of one event.
func (m *module) call(f api.Function) error {
	m.fuel.Set(api.EncodeI32(fuel))
	m.host.calls = 0
	err := f.CallWithStack(context.Background(), m.stack[:])
	if err != nil {
		return m.trap(err)
	}
	return nil
}

// trap says why a call ended early.
func (m *module) trap(err error) error {
	if int32(m.fuel.Get()) < 0 {
		return fmt.Errorf("it took more than %d million steps for one event", fuel/1_000_000)
	}
	return fmt.Errorf("it trapped: %.200s", err.Error())
}

// configure tells the module its configuration.
func (m *module) configure(config onpath.Env) error {
	if m.d.config.members == nil {
		m.host.config = config // what it asks for by name
		return nil
	}
	o := &bpfobject.Object{Config: m.d.config.members}
	b, err := o.Values(config)
	if err != nil {
		return err
	}
	if !m.inst.Memory().Write(m.d.config.at, b) {
		return fmt.Errorf("its configuration is not in its memory")
	}
	m.host.config = config
	return nil
}

// sampleEvery is how many events one is measured of: the clock costs as much as a
// packet.
const sampleEvery = 8

// excess counts measurements in a row that are above a bound.
type excess struct {
	row   int
	least time.Duration // of the row
}

// add takes in a measurement. It says whether the module is too slow.
func (x *excess) add(took, bound time.Duration) bool {
	switch {
	case took <= bound:
		*x = excess{}
	case x.row == 0:
		*x = excess{1, took}
	default:
		x.row, x.least = x.row+1, min(x.least, took)
	}
	return x.row >= patience
}

// timed calls f for n packets, or for another event (0), and measures samples of them
// by the processor's time: who else runs does not count. Behind a long one it measures all.
func (m *module) timed(n int, f api.Function) error {
	if m.events++; m.events%sampleEvery != 1 && m.long.row == 0 {
		return m.call(f)
	}
	before := threadTime()
	if err := m.call(f); err != nil {
		return err
	}
	took := threadTime() - before
	if m.long.add(took, longest) {
		return fmt.Errorf("each of %d events in a row took %s and more; %s is the most", patience, m.long.least.Round(time.Microsecond),
			longest)
	}
	if n == 0 {
		return nil
	}
	m.numbers.Time += took
	m.numbers.Samples += uint64(n)
	return m.budget(n, took)
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// budget sees whether packets take too long, in the mean of each thousand.
func (m *module) budget(n int, took time.Duration) error {
	m.slowTime += took
	if m.slowN += uint64(n); m.slowN < 1000 {
		return nil
	}
	mean := m.slowTime / time.Duration(m.slowN)
	m.slowTime, m.slowN = 0, 0
	limit := time.Duration(m.spec.Budget)
	if limit == 0 {
		limit = time.Duration(onpath.DefaultModuleBudget)
	}
	if m.over.add(mean, limit) {
		return fmt.Errorf("a packet takes %s and more in the mean of each of %d thousand in a row; its budget is %s", m.over.least,
			patience, limit)
	}
	return nil
}

// counters are those that the module declares, and what it has set by name.
func (m *module) counters() map[string]uint64 {
	out := map[string]uint64{}
	if s := m.d.counters.members; s != nil {
		for _, c := range s.Members {
			if v, ok := m.inst.Memory().ReadUint64Le(m.d.counters.at + uint32(c.Offset.Bytes())); ok {
				out[c.Name] = v
			}
		}
	}
	for name, v := range m.host.metrics {
		out[name] = v
	}
	return out
}

func (m *module) close() {
	m.host.streams.stop()
	for _, w := range m.host.writing {
		w.Drop()
	}
	if m.runtime != nil {
		_ = m.runtime.Close(context.Background())
	}
}

// due is when its timer is, or the end of time.
func (m *module) due() time.Time {
	if m.every == 0 || m.timer == nil {
		return time.Unix(math.MaxInt32, 0)
	}
	return m.next
}
