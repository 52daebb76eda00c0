package relay

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Link joins two devices.
type Link struct {
	Name  string `json:"name"`
	A     string `json:"a"` // device
	B     string `json:"b"` // device
	There Shape  `json:"there"`
	Back  Shape  `json:"back"`
}

// Relay is a set of links that are ready to run.
type Relay struct {
	directions []*direction
	stop       int // an eventfd that ends all directions
}

// moderation is how long a direction with a delay of at least moderatedDelay
// sleeps at least, so that one wake-up serves many frames. It bounds how
// late a frame leaves; none leaves early.
const (
	moderation     = 150 * time.Microsecond
	moderatedDelay = time.Millisecond
)

// direction is one way of one link; one thread runs it.
type direction struct {
	from, to *socket
	line     *line
	queue    *fifo
	reader   *reader
	writer   *writer
	parts    []part
	publish  func(Counters)
}

// Open opens the sockets of all links in the network namespace of the calling
// thread.
func Open(links []Link, counters *CounterFile) (*Relay, error) {
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("relay: eventfd: %w", err)
	}
	r := &Relay{stop: stop}
	for i, l := range links {
		stamped := l.There.Delay >= moderatedDelay || l.Back.Delay >= moderatedDelay
		a, err := openSocket(l.A, stamped)
		if err != nil {
			r.Close()
			return nil, err
		}
		b, err := openSocket(l.B, stamped)
		if err != nil {
			a.close()
			r.Close()
			return nil, err
		}
		r.directions = append(r.directions,
			newDirection(a, b, l.There, counters.writer(2*i), counters.delay(2*i)),
			newDirection(b, a, l.Back, counters.writer(2*i+1), counters.delay(2*i+1)))
	}
	return r, nil
}

func newDirection(from, to *socket, s Shape, publish func(Counters), extra func(int64) int64) *direction {
	d := &direction{
		from: from, to: to, line: newLine(s), queue: newFIFO(flight(s)),
		reader: newReader(), writer: newWriter(), publish: publish,
	}
	d.line.extra = extra
	return d
}

// flight is how many bytes a direction may hold: what the shape says and a
// quarter more for bookkeeping, or 64 MiB where the rate is unlimited.
func flight(s Shape) int64 {
	if s.Rate == 0 {
		return 64 << 20
	}
	onTheWay := float64(s.Rate) / 8 * (s.Delay + s.Jitter).Seconds()
	return int64(1.25*(onTheWay+float64(s.Queue))) + 4*chunkSize
}

// Close frees the sockets. Run must have returned.
func (r *Relay) Close() {
	for i, d := range r.directions {
		if i%2 == 0 { // the other direction has the same two
			d.from.close()
			d.to.close()
		}
	}
	unix.Close(r.stop)
}

// Run moves frames until ctx ends or a socket fails.
func (r *Relay) Run(ctx context.Context) error {
	// No direction should wait for another's turn in Go's scheduler.
	if n := len(r.directions) + 1; runtime.GOMAXPROCS(0) < n {
		runtime.GOMAXPROCS(n)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, d := range r.directions {
		wg.Go(func() {
			if err := d.run(r.stop); err != nil {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	if _, err := unix.Write(r.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("relay: stop: %w", err)
	}
	wg.Wait()
	if err := context.Cause(ctx); err != context.Canceled {
		return err
	}
	return nil
}

// run is the loop of one direction: receive all that is there, send all that
// is due, sleep until more is due. While frames wait it need not look for new
// ones, because these leave later and the kernel notes when they came.
func (d *direction) run(stop int) error {
	runtime.LockOSThread() // never unlocked: the thread has settings of its own
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("relay: timer slack: %w", err)
	}
	hurry()
	published := Counters{}
	for polls := 0; ; polls++ {
		if err := d.collect(); err != nil {
			return err
		}
		d.deliver()
		if polls&1023 == 0 {
			d.line.Missed += d.from.missed()
		}
		if d.line.Counters != published {
			published = d.line.Counters
			d.publish(published)
		}
		stopped, err := d.sleep(stop)
		if stopped || err != nil {
			return err
		}
	}
}

// hurry asks for the least real-time priority for the calling thread, or a
// better one than others', if the machine lets us. Without it, frames are late
// when the machine is busy. The kernel keeps a share of each second for others
// (sched_rt_runtime_us), whatever we do.
func hurry() {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
	if unix.SchedSetAttr(0, &attr, 0) != nil {
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -10)
	}
}

// collect takes frames from the device and puts them on the line.
func (d *direction) collect() error {
	for rounds := 0; rounds < 8; rounds++ {
		n, err := d.reader.receive(d.from)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		now, ahead := clocks()
		for i := range n {
			b, stamp := d.reader.frame(i)
			arrival := now
			if stamp != 0 {
				arrival = min(now, stamp-ahead)
			}
			d.accept(b, arrival)
		}
		if n < batch {
			return nil
		}
	}
	return nil
}

// clocks is the monotonic clock, and how far the real-time clock is ahead.
func clocks() (now, ahead int64) { return compare(monotonic, realTime) }

// soon is within what time two clocks are read by a thread that nobody interrupts.
const soon = int64(10 * time.Microsecond)

// compare reads one clock behind the other. A pause between them makes ahead too small,
// never too large: then frames seem to have come later, and none leaves early.
func compare(monotonic, realTime func() int64) (now, ahead int64) {
	ahead = math.MinInt64
	for range 4 {
		before := monotonic()
		there := realTime()
		now = monotonic()
		if ahead = max(ahead, there-now); now-before < soon {
			break
		}
	}
	return now, ahead
}

func realTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_REALTIME, &ts)
	return ts.Nano()
}

func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

func (d *direction) accept(b []byte, arrival int64) {
	if len(b) < vnetLen+ethLen {
		return
	}
	f := parse(b)
	d.parts = d.line.admit(arrival, f.segments, f.size, d.parts[:0])
	for _, p := range d.parts {
		n := f.partLen(p)
		to := d.queue.space(n)
		if to == nil {
			d.line.overflow(&f, p)
			continue
		}
		f.cut(to, p)
		d.queue.push(n, d.line.departure(p.depart))
	}
}

// overflow takes back what admit counted of a part that finds no memory.
func (l *line) overflow(f *frame, p part) {
	for i := p.first; i < p.end; i++ {
		l.Full++
		l.Packets--
		l.Bytes -= uint64(f.size(i))
	}
}

// deliver sends what is due.
func (d *direction) deliver() {
	for d.queue.n > 0 {
		due := monotonic()
		n := 0
		for n < batch && n < d.queue.n && d.queue.at(n).depart <= due {
			d.writer.set(n, d.queue.at(n).frame)
			n++
		}
		if n == 0 {
			return
		}
		_, refused := d.writer.send(d.to, n)
		d.line.Refused += uint64(refused)
		d.queue.drop(n)
	}
}

// sleep waits until a frame is due or, if none waits, until one comes.
func (d *direction) sleep(stop int) (stopped bool, err error) {
	fds := []unix.PollFd{{Fd: int32(stop), Events: unix.POLLIN}, {Fd: int32(d.from.fd), Events: unix.POLLIN}}
	var timeout *unix.Timespec
	if d.queue.n > 0 {
		fds = fds[:1]
		wait := max(d.queue.at(0).depart-monotonic(), 0)
		if d.line.Delay >= moderatedDelay {
			wait = max(wait, int64(moderation))
		}
		// Look at the socket at least each ms: its buffer is finite.
		ts := unix.NsecToTimespec(min(wait, int64(time.Millisecond)))
		timeout = &ts
	}
	_, err = unix.Ppoll(fds, timeout, nil)
	if err != nil && err != unix.EINTR {
		return false, fmt.Errorf("relay: wait: %w", err)
	}
	return fds[0].Revents != 0, nil
}
