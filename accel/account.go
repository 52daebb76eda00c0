package accel

import (
	"maps"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// What a connection, a SYN and bytes that are carried at once cost the process beside the bytes
// that they bring, as bytes that cost as much.
const (
	connectionWork = 128 << 10
	synWork        = 8 << 10
	turnWork       = 4 << 10
)

// work is what an instance has done since it began, in bytes or what costs as much.
type work struct{ done, open atomic.Int64 }

func (w *work) add(n int64) {
	if w != nil {
		w.done.Add(n)
	}
}

// hold counts an open connection, from the time of its leg to its end.
func (w *work) hold(n int64) {
	if w != nil {
		w.open.Add(n)
	}
}

// accounts divide the processor time of the process among its instances: what it took since
// the last time goes to those that lived, by what each has done since. So they add up to what
// the process took, whoever comes and goes.
type accounts struct {
	settled time.Duration // of the process, divided already
	of      map[string]*account
}

type account struct {
	work *work
	seen int64 // of work.done, paid
	cpu  time.Duration
}

func (a *accounts) begin(id string, w *work, now time.Duration) {
	a.settle(now) // the others paid until now; what nobody has paid falls to the first
	if a.of == nil {
		a.of = map[string]*account{}
	}
	a.of[id] = &account{work: w}
}

// end takes an account out; it gives what its instance took.
func (a *accounts) end(id string, now time.Duration) time.Duration {
	a.settle(now)
	x := a.of[id]
	if x == nil {
		return 0
	}
	delete(a.of, id)
	return x.cpu
}

// settle divides what the process has taken until now. Where nobody has done anything, all
// have the same.
func (a *accounts) settle(now time.Duration) {
	left := now - a.settled
	if len(a.of) == 0 || left <= 0 {
		return
	}
	a.settled = now
	ids := slices.Sorted(maps.Keys(a.of))
	did, all := make([]int64, len(ids)), int64(0)
	for i, id := range ids {
		x := a.of[id]
		done := x.work.done.Load()
		did[i], x.seen = done-x.seen, done
		all += did[i]
	}
	if all == 0 {
		for i := range did {
			did[i] = 1
		}
		all = int64(len(did))
	}
	for i, id := range ids { // each has its part of what is left, so that nothing is
		part := time.Duration(share(int64(left), did[i], all))
		a.of[id].cpu += part
		left -= part
		all -= did[i]
	}
}

// share is n × part / all, 0 ≤ part ≤ all; 0 of 0 is 0.
func share(n, part, all int64) int64 {
	if all == 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(n), uint64(part))
	q, _ := bits.Div64(hi, lo, uint64(all)) // q ≤ n: part ≤ all
	return int64(q)
}

// processCPU is what this process has taken of processors.
func processCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
