package instance

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/onpath/onpath"
)

// haltEvery is the time between two looks at whether a program was stopped. The
// kernel goes on accepting connections for it and forwarding in its namespace,
// so that many a probe succeeds.
const haltEvery = 100 * time.Millisecond

var errHalted = errors.New("its first process is stopped (SIGSTOP)")

// watcher watches what becomes of an instance that runs.
type watcher struct{ self }

// watchHalts sends true when the process was stopped and false when it goes on.
func (in watcher) watchHalts(ctx context.Context, p onpath.Process) (<-chan bool, func()) {
	ctx, cancel := context.WithCancel(ctx)
	changes, done := make(chan bool), make(chan struct{})
	go func() {
		defer close(done)
		was := false
		for in.s.part.Clock.Sleep(ctx, haltEvery) == nil {
			is, known := halted(p.Pid())
			if !known || is == was {
				continue
			}
			select {
			case changes <- is:
				was = is
			case <-ctx.Done():
			}
		}
	}()
	return changes, func() {
		cancel()
		<-done
	}
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
