package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Stream is a TCP connection between two namespaces, whose ends are threads of
// their own, pinned, with blocking sockets: no event loop moves them about.
type Stream struct {
	sender, receiver chan func(fd int)
	fds              [2]int
}

// StreamSpec says between whom.
type StreamSpec struct {
	From, To    string // namespaces
	Address     netip.AddrPort
	FromCPU     int
	ToCPU       int
	Congestion  string        // such as cubic; "": the kernel's default
	DialTimeout time.Duration // default 5 s
}

// OpenStream connects.
func OpenStream(s StreamSpec) (*Stream, error) {
	if s.DialTimeout == 0 {
		s.DialTimeout = 5 * time.Second
	}
	st := &Stream{sender: make(chan func(int)), receiver: make(chan func(int)), fds: [2]int{-1, -1}}
	listening, accepted, connected := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	go end(s.To, s.ToCPU, st.receiver, &st.fds[1], func() (int, error) { return accept(s, listening) }, accepted)
	if err := <-first(listening, accepted); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	go end(s.From, s.FromCPU, st.sender, &st.fds[0], func() (int, error) { return dial(s) }, connected)
	if err := errors.Join(<-connected, <-accepted); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", s.Address, err), st.Close())
	}
	return st, nil
}

// first gives what comes first: listening, or why not.
func first(listening, failed chan error) chan error {
	out := make(chan error, 1)
	go func() {
		select {
		case err := <-listening:
			out <- err
		case err := <-failed:
			failed <- err
			out <- err
		}
	}()
	return out
}

// end is one end of a stream: open gives its socket, jobs use it.
func end(ns string, cpu int, jobs chan func(int), fd *int, open func() (int, error), ready chan<- error) {
	runtime.LockOSThread() // the thread ends with the goroutine
	err := join(ns, cpu)
	if err == nil {
		*fd, err = open()
	}
	ready <- err
	for job := range jobs {
		job(*fd)
	}
	if *fd >= 0 {
		unix.Close(*fd)
	}
}

func sockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

func accept(s StreamSpec, listening chan<- error) (int, error) {
	l, err := socket(s)
	if err != nil {
		return -1, err
	}
	defer unix.Close(l)
	if err := errors.Join(unix.SetsockoptInt(l, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(l, sockaddr(s.Address)), unix.Listen(l, 1)); err != nil {
		return -1, fmt.Errorf("listen on %s: %w", s.Address, err)
	}
	tv := unix.NsecToTimeval(s.DialTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(l, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return -1, err
	}
	listening <- nil
	fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
	if err != nil {
		return -1, err
	}
	return fd, limits(fd)
}

func dial(s StreamSpec) (int, error) {
	fd, err := socket(s)
	if err != nil {
		return -1, err
	}
	tv := unix.NsecToTimeval(s.DialTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return fd, err
	}
	if err := unix.Connect(fd, sockaddr(s.Address)); err != nil {
		return fd, err
	}
	return fd, limits(fd)
}

func socket(s StreamSpec) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if s.Congestion != "" {
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, s.Congestion); err != nil {
			return fd, fmt.Errorf("use %s: %w", s.Congestion, err)
		}
	}
	return fd, nil
}

// stall is how long a stream may stand still before it is called broken.
const stall = 10 * time.Second

func limits(fd int) error {
	tv := unix.NsecToTimeval(stall.Nanoseconds())
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
}

// Close ends both threads and closes the connection.
func (s *Stream) Close() error {
	close(s.sender)
	close(s.receiver)
	return nil
}

// Pumped is what a pump moved.
type Pumped struct {
	Bytes uint64 // that arrived
	Time  time.Duration
}

// chunk is the length of one write, bytes.
const chunk = 128 << 10

// Pump sends as fast as TCP lets it, for a warm-up and then for the time that
// counts; at is called when that begins and when it ends. The stream can pump
// again.
func (s *Stream) Pump(ctx context.Context, warm, long time.Duration, at func()) (p Pumped, err error) {
	var arrived atomic.Uint64
	var stop atomic.Bool
	sent, received := make(chan error, 1), make(chan error, 1)
	var total atomic.Uint64 // once the sender has ended
	s.receiver <- func(fd int) { received <- drain(fd, &arrived, &total) }
	s.sender <- func(fd int) { sent <- fill(fd, &stop, &total) }
	wait := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	wait(warm)
	at()
	begin, before := time.Now(), arrived.Load()
	wait(long)
	p.Bytes, p.Time = arrived.Load()-before, time.Since(begin)
	at()
	stop.Store(true)
	return p, errors.Join(<-sent, <-received, ctx.Err())
}

// fill sends until it shall stop; total then is all that it sent.
func fill(fd int, stop *atomic.Bool, total *atomic.Uint64) error {
	b := make([]byte, chunk)
	sent := uint64(0)
	for !stop.Load() {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("send: %w", err)
		}
		sent += uint64(n)
	}
	// One byte more, after the total is known, wakes a receiver that has everything.
	total.Store(sent + 1)
	return all(fd, b[:1], unix.Write)
}

// drain reads until all that was sent has come.
func drain(fd int, arrived, total *atomic.Uint64) error {
	b, read := make([]byte, 2*chunk), uint64(0)
	for {
		n, err := unix.Read(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if n == 0 {
			return errors.New("receive: the connection was closed")
		}
		read += uint64(n)
		arrived.Store(read)
		if all := total.Load(); all > 0 && read >= all {
			return nil
		}
	}
}

// RoundTrips sends one byte to and fro, so many times, and gives the times in
// ascending order.
func (s *Stream) RoundTrips(ctx context.Context, n int) ([]time.Duration, error) {
	times := make([]time.Duration, 0, n)
	echoed, done := make(chan error, 1), make(chan error, 1)
	s.receiver <- func(fd int) { echoed <- echo(fd, n) }
	s.sender <- func(fd int) {
		b := []byte{0}
		for range n {
			start := time.Now()
			if err := errors.Join(all(fd, b, unix.Write), all(fd, b, unix.Read)); err != nil {
				done <- fmt.Errorf("round trip: %w", err)
				return
			}
			times = append(times, time.Since(start))
		}
		done <- nil
	}
	err := errors.Join(<-done, <-echoed, ctx.Err())
	slices.Sort(times)
	return times, err
}

func echo(fd, n int) error {
	b := []byte{0}
	for range n {
		if err := errors.Join(all(fd, b, unix.Read), all(fd, b, unix.Write)); err != nil {
			return fmt.Errorf("round trip: %w", err)
		}
	}
	return nil
}

func all(fd int, b []byte, do func(int, []byte) (int, error)) error {
	for {
		n, err := do(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err == nil && n != len(b) {
			err = errors.New("the connection was closed")
		}
		return err
	}
}
