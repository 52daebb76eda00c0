package engine

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/afxdp"
	"github.com/onpath/onpath/engine/blob"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/packet"
)

// Engine runs the modules of one instance.
type Engine struct {
	log    *slog.Logger
	out    io.Writer // what modules log
	events chan func()
	wake   int // eventfd: something is in events

	changing sync.Mutex // one change of the list at a time

	// The engine's goroutine alone has the rest.
	socket  *afxdp.Socket
	device  control.Device
	vport   onpath.VportID
	list    []*module
	outs    map[string]*outage
	states  map[string]*store
	config  control.Config
	rights  onpath.PacketRights
	packets quota
	bits    quota
	now     uint64
	firsts  packet.Fragments // of packets as they came
	served  *served
	asked   *asked // while a datagram is met
	trial   *Trial // takes what modules send, where there is no device

	// What modules have beside the packets; each has its own locks.
	ended   context.Context // with the engine
	end     context.CancelFunc
	disk    atomic.Pointer[blob.Store] // nil: no blobs
	supply  *supply
	fetcher *http.Client
	teller  *http.Client
	telling chan struct{}
	kept    kept
}

// outage is a module that has left the list by itself.
type outage struct {
	why   string
	times int
	again time.Time
	busy  bool // is being made anew
}

// New makes an engine without modules and packets. What modules log goes to out.
func New(log *slog.Logger, out io.Writer) (*Engine, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	e := &Engine{log: log, out: out, wake: fd, events: make(chan func(), 256), outs: map[string]*outage{}, states: map[string]*store{},
		rights: onpath.PacketsKeep, supply: newSupply(), telling: make(chan struct{}, maxTelling)}
	e.ended, e.end = context.WithCancel(context.Background())
	e.fetcher, e.teller = newFetcher(e.supply), newTeller(e.supply)
	return e, nil
}

// do runs f between two batches and waits for it.
func (e *Engine) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	if err := e.post(ctx, func() { f(); close(done) }); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// post has f run between two batches.
func (e *Engine) post(ctx context.Context, f func()) error {
	select {
	case e.events <- f:
	case <-ctx.Done():
		return ctx.Err()
	}
	_, _ = unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	return nil
}

// Attach gives the engine its device: an AF_XDP socket, and sockets that serve ports.
func (e *Engine) Attach(ctx context.Context, d control.Device, f *afxdp.Files, s *served) error {
	if len(d.MAC) != 6 || len(d.NextHop) != 6 {
		return onpath.Errorf(onpath.CodeInvalid, "attach the engine: hardware addresses have six bytes")
	}
	socket, err := afxdp.Map(f)
	if err != nil {
		return err
	}
	again := false
	err = e.do(ctx, func() {
		if again = e.socket != nil; !again {
			e.socket, e.device, e.vport, e.served = socket, d, d.Vport, s
			s.serve(e)
		}
	})
	if err == nil && !again {
		return nil
	}
	_ = socket.Close()
	if err == nil {
		err = onpath.Errorf(onpath.CodeExists, "attach the engine: it is attached already")
	}
	return err
}

// Run meets events until ctx ends.
func (e *Engine) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := context.AfterFunc(ctx, func() { _, _ = unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) })
	defer stop()
	defer e.closeAll()
	frames := make([]afxdp.Frame, maxBatch)
	batch := make([]received, 0, maxBatch)
	for ctx.Err() == nil {
		n := 0
		if e.socket != nil {
			if n = e.socket.Receive(frames); n > 0 {
				e.now = uint64(monotonic())
				batch = e.through(frames[:n], batch[:0])
			}
			if err := e.socket.Flush(); err != nil {
				return err
			}
		}
		e.meet()
		if n == 0 && len(e.events) == 0 {
			e.rest()
		}
	}
	return nil
}

// through has a batch visit the modules, and sends on what is left of it.
func (e *Engine) through(frames []afxdp.Frame, batch []received) []received {
	for _, f := range frames {
		batch = append(batch, received{})
		if r := &batch[len(batch)-1]; !r.read(e.socket, f) {
			r.gone = true
			e.socket.Release(f)
			batch = batch[:len(batch)-1]
		} else {
			e.firsts.Join(&r.h, e.now)
		}
	}
	for _, m := range e.list {
		if m.packets != nil {
			e.visit(m, batch)
		}
	}
	for i := range batch {
		r := &batch[i]
		if r.gone {
			e.socket.Release(r.frame)
			continue
		}
		b := e.socket.Bytes(r.frame)
		copy(b[0:6], e.device.NextHop)
		copy(b[6:12], e.device.MAC)
		e.socket.Send(r.frame)
	}
	return batch
}

// meetFor is how long events may hold up packets: no event begins later than that.
const meetFor = time.Millisecond

// meet meets what is not a packet: what was posted, and timers.
func (e *Engine) meet() {
	now := time.Now()
	for until := now.Add(meetFor); len(e.events) > 0 && now.Before(until); now = time.Now() {
		(<-e.events)()
	}
	for _, m := range e.list {
		if m.timer == nil || m.every == 0 || m.out() || now.Before(m.next) {
			continue
		}
		if m.next = m.next.Add(m.every); m.next.Before(now) {
			m.next = now.Add(m.every) // what was missed is not made up for
		}
		if err := m.timed(0, m.timer); err != nil {
			e.takeOut(m, err)
		}
	}
}

// idle is the longest that the engine rests, so that backoffs end.
const idle = 200 * time.Millisecond

// rest waits for a packet, an event or a timer.
func (e *Engine) rest() {
	fds := []unix.PollFd{{Fd: int32(e.wake), Events: unix.POLLIN}}
	if e.socket != nil {
		fds = append(fds, unix.PollFd{Fd: int32(e.socket.Fd()), Events: unix.POLLIN})
	}
	wait := idle
	for _, m := range e.list {
		wait = min(wait, max(0, time.Until(m.due())))
	}
	_, _ = unix.Poll(fds, int((wait+time.Millisecond-1)/time.Millisecond))
	if fds[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(e.wake, b[:])
	}
	e.retry()
}

func (e *Engine) closeAll() {
	e.end()
	for _, m := range e.list {
		m.close()
	}
	if e.socket != nil {
		_ = e.socket.Close()
	}
	e.served.close()
	_ = unix.Close(e.wake)
}

// Set makes the list of modules so, whole: those that are the same go on undisturbed,
// with what they keep. On error nothing is changed.
func (e *Engine) Set(ctx context.Context, c control.Config) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	var have []*module
	if err := e.do(ctx, func() { have = slices.Clone(e.list) }); err != nil {
		return err
	}
	var list, fresh, told []*module
	drop := func() { // between two batches: they may have streams already
		_ = e.do(e.ended, func() {
			for _, m := range fresh {
				m.close()
			}
		})
	}
	names := map[string]bool{}
	for i := range c.Modules {
		spec := c.Modules[i]
		if spec.Name == "" || names[spec.Name] {
			drop()
			return onpath.Errorf(onpath.CodeInvalid, "module %d: its name %q is empty or not its own", i+1, spec.Name)
		}
		names[spec.Name] = true
		m := same(have, &spec)
		if m == nil {
			var err error
			if m, err = load(ctx, spec, e.hostFor(ctx, spec)); err != nil {
				drop()
				return onpath.Errorf(onpath.CodeInvalid, "module %s: %w", spec.Name, err)
			}
			fresh = append(fresh, m)
		} else {
			told = append(told, m)
		}
		list = append(list, m)
	}
	return e.do(ctx, func() { e.swap(c, list, told) })
}

// same finds a module that need not be made anew.
func same(have []*module, spec *onpath.WasmModule) *module {
	sum := spec.SHA256()
	i := slices.IndexFunc(have, func(m *module) bool { return m.spec.Name == spec.Name && m.sha256 == sum })
	if i < 0 {
		return nil
	}
	return have[i]
}

func (e *Engine) hostFor(ctx context.Context, spec onpath.WasmModule) *host {
	h := &host{e: e, metrics: map[string]uint64{}, lines: newQuota(logLines), config: spec.Config, streams: newStreams(),
		fetches: newQuota(fetchRate), tells: newQuota(tellRate), comes: newPace(comesRate),
		writes: newQuota(writeRate), writing: map[string]*blob.Writer{}}
	_ = e.do(ctx, func() {
		if h.state = e.states[spec.Name]; h.state == nil {
			h.state = &store{values: map[string][]byte{}}
			e.states[spec.Name] = h.state
		}
	})
	return h
}

// swap puts a new list in force.
func (e *Engine) swap(c control.Config, list, told []*module) {
	for i, m := range told {
		spec := c.Modules[slices.Index(list, told[i])]
		m.pick, m.bypass = spec.Select, spec.None == onpath.NoneBypass
		if err := m.configure(spec.Config); err != nil {
			e.log.Error("cannot tell a module its configuration", "module", spec.Name, "err", err)
		}
		m.spec = spec
	}
	for _, m := range e.list {
		if !slices.Contains(list, m) {
			delete(e.outs, m.spec.Name)
			m.close()
		}
	}
	for name := range e.states {
		if !slices.ContainsFunc(list, func(m *module) bool { return m.spec.Name == name }) {
			delete(e.states, name)
		}
	}
	e.list, e.config, e.rights = list, c, c.Packets
	e.limit(c.Emit)
	if c.Memory > 0 {
		debug.SetMemoryLimit(int64(c.Memory) / 4 * 3)
	}
}

func (e *Engine) limit(l onpath.Emit) {
	if l.Packets == 0 {
		l.Packets = onpath.DefaultEmit.Packets
	}
	if l.Rate == 0 {
		l.Rate = onpath.DefaultEmit.Rate
	}
	if e.packets.rate != float64(l.Packets) {
		e.packets = newQuota(float64(l.Packets))
	}
	if e.bits.rate != float64(l.Rate) {
		e.bits = newQuota(float64(l.Rate))
	}
}

// Status says what the engine is doing.
func (e *Engine) Status(ctx context.Context) (s control.Status, err error) {
	err = e.do(ctx, func() {
		if e.socket != nil {
			s = control.Status{Attached: true, Received: e.socket.Received, Sent: e.socket.Sent, Lost: e.socket.SendFailed,
				Missed: e.socket.Missed(), Served: e.served.ports()}
		}
		for _, m := range e.list {
			ms := control.ModuleStatus{Name: m.spec.Name, SHA256: m.sha256, ModuleNumbers: m.numbers}
			if o := e.outs[m.spec.Name]; o != nil && m.out() {
				ms.Why, ms.Again = o.why, onpath.Duration(max(0, time.Until(o.again)))
			} else {
				ms.Counters = m.counters()
			}
			s.Modules = append(s.Modules, ms)
		}
	})
	return s, err
}

func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &t)
	return time.Duration(t.Nano())
}

// print writes a line of a module to the instance's log.
func (e *Engine) print(module, line string) { fmt.Fprintf(e.out, "%s: %q\n", module, line) }

// sendDatagram sends from the instance's own address, or one of its ports.
func (e *Engine) sendDatagram(m *module, from uint16, to netip.AddrPort, data []byte) int32 {
	if !e.allowed(m, len(data)+28) {
		return refused
	}
	c := e.served.datagrams(from)
	if c == nil {
		return absent
	}
	var source []byte
	if a := e.asked; a != nil && from == a.port && to.Port() == a.from.Port() && to.Addr() == a.from.Addr().Unmap() {
		source, to = a.to, a.from
	}
	if _, _, err := c.WriteMsgUDPAddrPort(data, source, to); err != nil {
		return absent
	}
	m.numbers.Sent++
	return 0
}
