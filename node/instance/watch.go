package instance

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node/base"
)

// watch has look send values in a goroutine of its own. stop ends look, and returns when
// look has ended.
func watch[T any](ctx context.Context, look func(ctx context.Context, send func(T))) (values <-chan T, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ch, done := make(chan T), make(chan struct{})
	send := func(v T) {
		select {
		case ch <- v:
		case <-ctx.Done():
		}
	}
	go func() {
		defer close(done)
		look(ctx, send)
	}()
	return ch, func() {
		cancel()
		<-done
	}
}

// watchChanges sends what is asked for whenever it is other than before; ask waits between
// two answers, and has no answer now and then.
func watchChanges[T comparable](ctx context.Context, ask func(ctx context.Context, was T) (is T, ok bool)) (<-chan T, func()) {
	return watch(ctx, func(ctx context.Context, send func(T)) {
		var was T
		for ctx.Err() == nil {
			if is, ok := ask(ctx, was); ok && is != was {
				send(is)
				was = is
			}
		}
	})
}

// watcher watches what becomes of an instance that runs.
type watcher struct{ self }

// haltEvery is the time between two looks at whether a program was stopped. The
// kernel goes on accepting connections for it and forwarding in its namespace,
// so that many a probe succeeds.
const haltEvery = 100 * time.Millisecond

var errHalted = errors.New("its first process is stopped (SIGSTOP)")

// watchHalts sends true when the process was stopped and false when it goes on.
func (in watcher) watchHalts(ctx context.Context, p onpath.Process) (<-chan bool, func()) {
	return watchChanges(ctx, func(ctx context.Context, _ bool) (is, known bool) {
		if in.s.part.Clock.Sleep(ctx, haltEvery) != nil {
			return false, false
		}
		return halted(p.Pid())
	})
}

// halted reports whether a process is stopped by a signal, as /proc shows it;
// a debugger's hold does not count.
func halted(pid int) (is, known bool) {
	if pid == 0 {
		return false, false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false, false
	}
	_, rest, ok := bytes.Cut(stat[max(bytes.LastIndexByte(stat, ')'), 0):], []byte(") ")) // the name may hold anything
	return ok && len(rest) > 0 && rest[0] == 'T', ok
}

// halted closes the vports of a stopped program, and opens those of one that
// goes on, if no probe has a say.
func (w *supervision) halted(ctx context.Context) {
	in := w.in
	switch {
	case w.stopped && w.ready:
		w.ready, w.badSince = false, in.s.part.Clock.Now()
		in.close(ctx, onpath.InstanceUnready, becauseOf("Stalled", errHalted))
		in.s.part.TellInstance(w.plan, true, "Stalled", "%v: its flows go by lost and none until it goes on", errHalted)
		w.setEager(true)
	case !w.stopped && !w.ready && !w.health.probed() && w.settled:
		w.becomeReady(ctx)
	}
}

// Events about relays that are full.
const (
	ReasonRelayFull = "RelayFull"
	ReasonRelayOpen = "RelayOpen"
)

const passBy = ": new ones pass by, not accelerated; add nodes to the accelerator, or "

var fullWords = map[onpath.RelayFullness]string{
	onpath.RelayFullConnections: "the node's relays hold nearly as many connections as they may" + passBy +
		"raise the node's limit of open files or its memory",
	onpath.RelayFullTenant: "it holds nearly as many connections as one tenant may have" + passBy +
		"raise the node's limit of open files or its memory",
}

// askFullAgain is the wait after a relay could not say whether it is full.
const askFullAgain = time.Second

// watchFull sends how full a relay is whenever that changes. A process that begins has room.
func (in watcher) watchFull(ctx context.Context, p onpath.Process) (<-chan onpath.RelayFullness, func()) {
	in.st.change(func(f *Fact) { f.Full = "" })
	r, ok := p.(onpath.Relaying)
	if !ok {
		return nil, func() {}
	}
	return watchChanges(ctx, func(ctx context.Context, was onpath.RelayFullness) (onpath.RelayFullness, bool) {
		is, err := r.AwaitFull(ctx, was)
		if err != nil || ended(p) {
			_ = in.s.part.Clock.Sleep(ctx, askFullAgain)
			return was, false
		}
		return is, true
	})
}

// fill has new flows pass a full instance by, or come to it again.
func (in watcher) fill(full onpath.RelayFullness) {
	var was onpath.RelayFullness
	in.st.change(func(f *Fact) { was, f.Full = f.Full, full })
	in.s.rounds.Kick(false)
	base.Kick(in.s.part.ReportDue)
	switch {
	case full != "" && was == "":
		in.s.part.TellInstance(in.current(), true, ReasonRelayFull, "%s", fullWords[full])
	case full == "" && was != "":
		in.s.part.TellInstance(in.current(), false, ReasonRelayOpen, "it has room again, and takes new connections")
	}
}
