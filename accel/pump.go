package accel

import (
	"errors"
	"io"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/accel/vanish"
)

// chunk is how many bytes go through a pipe at once: what a pipe holds that nobody enlarged
// for more memory than a user may take.
const chunk = 256 << 10

// pipe carries bytes between two sockets inside the kernel. It is empty while it is free.
type pipe struct{ r, w int }

// pipes keeps empty pipes for the next use. A direction holds one only while it has bytes,
// so idle connections cost no pipes.
type pipes struct {
	make func() (pipe, error) // nil: newPipe

	mu     sync.Mutex
	free   []pipe
	open   int // those that are free included
	most   int
	closed bool
}

const keptPipes = 64

func (ps *pipes) get() (pipe, error) {
	ps.mu.Lock()
	if n := len(ps.free); n > 0 {
		p := ps.free[n-1]
		ps.free = ps.free[:n-1]
		ps.mu.Unlock()
		return p, nil
	}
	if ps.open >= ps.most {
		ps.mu.Unlock()
		return pipe{}, unix.EMFILE
	}
	ps.open++
	ps.mu.Unlock()
	create := ps.make
	if create == nil {
		create = newPipe
	}
	p, err := create()
	if err != nil {
		ps.bear(-1)
	}
	return p, err
}

func (ps *pipes) bear(n int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.open += n
}

// files is how many files all pipes are.
func (ps *pipes) files() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.open * 2
}

// bound has no more pipes be made than so many files allow: bytes go without as well.
func (ps *pipes) bound(files int) {
	ps.mu.Lock()
	ps.most = max(files, 0) / 2
	over := min(max(ps.open-ps.most, 0), len(ps.free))
	gone := ps.free[:over]
	ps.free = slices.Clone(ps.free[over:])
	ps.mu.Unlock()
	for _, p := range gone {
		ps.end(p)
	}
}

func newPipe() (pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return pipe{}, err
	}
	// Without this, a pipe holds 64 KiB; more needs no privilege up to the user's share.
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, chunk)
	return pipe{fds[0], fds[1]}, nil
}

func (ps *pipes) put(p pipe) {
	ps.mu.Lock()
	if !ps.closed && len(ps.free) < keptPipes && ps.open <= ps.most {
		ps.free = append(ps.free, p)
		ps.mu.Unlock()
		return
	}
	ps.mu.Unlock()
	ps.end(p)
}

func (ps *pipes) end(p pipe) {
	unix.Close(p.r)
	unix.Close(p.w)
	ps.bear(-1)
}

func (ps *pipes) close() {
	ps.mu.Lock()
	free := ps.free
	ps.free, ps.closed = nil, true
	ps.mu.Unlock()
	for _, p := range free {
		ps.end(p)
	}
}

// join carries both directions of a connection until both have ended. The end of one
// direction ends that direction at the other side; an error resets both sides, so that
// neither end takes a cut connection for a complete one; so does the kernel when the process
// is killed (lifetime).
func (ps *pipes) join(a, b conn, v *vanish.Connection, there, back func(n int64)) error {
	carry := func(to, from conn, m mover, count func(n int64)) error {
		err := ps.pump(to, from, m, count)
		if err != nil {
			reset(a)
			reset(b)
		}
		return err
	}
	other := make(chan error, 1)
	go func() { other <- carry(a, b, mover{v, 1}, back) }()
	err := carry(b, a, mover{v, 0}, there)
	if err = errors.Join(err, <-other); err == nil {
		_, _ = a.SetLinger(-1), b.SetLinger(-1) // what is on its way arrives
	}
	a.Close()
	b.Close()
	return err
}

// reset closes a connection by RST.
func reset(c conn) {
	_ = c.SetLinger(0)
	c.Close()
}

// mover moves bytes of one direction, so that they are counted where the relay may step out.
type mover struct {
	in   *vanish.Connection // nil: the relay stays
	from int                // the end
}

func (m mover) take(do func() int) int { return m.in.Move(m.from, true, do) }
func (m mover) give(do func() int) int { return m.in.Move(1-m.from, false, do) }

// pump carries one direction; nil means that it ended properly and the other side knows.
func (ps *pipes) pump(to, from conn, m mover, count func(n int64)) error {
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	for {
		l, err := ps.fill(in, m)
		if errors.Is(err, io.EOF) {
			m.give(func() int { err = to.CloseWrite(); return 0 })
			return err
		}
		if err != nil {
			return err
		}
		if l.copied != nil {
			err = sendAll(out, m, l.copied, l.urgent)
		} else if err = drain(out, m, l.pipe, l.n, l.more); err != nil {
			ps.end(l.pipe) // bytes are left in it
		} else {
			ps.put(l.pipe)
		}
		if err != nil {
			return err
		}
		count(int64(l.n))
	}
}

// load is bytes on their way from one socket to the other: in a pipe, or copied.
type load struct {
	pipe   pipe
	copied []byte
	n      int
	more   bool // the socket was not empty behind them
	urgent bool // it is one byte, of urgent data
}

// fill waits until a socket has bytes and takes them. A pipe may be full before the socket is
// empty: then there are more.
func (ps *pipes) fill(in syscall.RawConn, m mover) (l load, err error) {
	var ended bool
	waited := in.Read(func(fd uintptr) bool {
		l, ended, err = ps.take(int(fd), m)
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case waited != nil:
		return l, waited
	case err != nil:
		return l, err
	case ended:
		return l, io.EOF
	}
	return l, nil
}

// take takes bytes that a socket has; EAGAIN: none yet. splice(2) stands still before an urgent
// byte, as if nothing had come, or the end had; and it needs a pipe, for which there may be no
// file or memory. What is there is then copied.
func (ps *pipes) take(fd int, m mover) (l load, ended bool, err error) {
	p, err := ps.get()
	if err == nil {
		var failed error
		n := m.take(func() int { n, err := spliceAll(fd, p.w, chunk, 0); failed = err; return int(n) })
		if n > 0 {
			return load{pipe: p, n: n, more: queued(fd) > 0}, false, nil
		}
		ps.put(p)
		if failed != nil && !errors.Is(failed, unix.EAGAIN) {
			return l, false, failed
		}
		if queued(fd) == 0 {
			return l, failed == nil, failed
		}
	}
	return copyOut(fd, m)
}

// queued is how many bytes a socket has.
func queued(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

// copied is how many bytes are copied at once where splice(2) does not do.
const copied = 16 << 10

// copyOut reads what a socket has, up to an urgent byte, or such a byte.
func copyOut(fd int, m mover) (l load, ended bool, err error) {
	size := copied
	if at, err := unix.IoctlGetInt(fd, unix.SIOCATMARK); err == nil && at != 0 {
		size, l.urgent = 1, true
	}
	b := make([]byte, size)
	for {
		l.n = m.take(func() (n int) { n, err = unix.Read(fd, b); return n })
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	l.n = max(l.n, 0)
	l.copied = b[:l.n]
	return l, err == nil && l.n == 0, err
}

// sendAll waits until another socket has taken all of b. Urgent data stays urgent.
func sendAll(out syscall.RawConn, m mover, b []byte, urgent bool) error {
	flags := unix.MSG_NOSIGNAL
	if urgent {
		flags |= unix.MSG_OOB
	}
	for len(b) > 0 {
		var err error
		waited := out.Write(func(fd uintptr) bool {
			var n int
			m.give(func() int { n, err = unix.SendmsgN(int(fd), b, nil, nil, flags); return n })
			if err == nil {
				b = b[n:]
			}
			return !errors.Is(err, unix.EAGAIN)
		})
		if waited != nil {
			return waited
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}

// drain waits until another socket has taken all bytes of a pipe. Where more follow at once,
// the last segment waits to be filled by them: in slow start each one counts.
func drain(out syscall.RawConn, m mover, p pipe, n int, more bool) error {
	var err error
	flags := 0
	if more {
		flags = unix.SPLICE_F_MORE
	}
	for n > 0 {
		waited := out.Write(func(fd uintptr) bool {
			given := m.give(func() int { n, failed := spliceAll(p.r, int(fd), n, flags); err = failed; return int(n) })
			if given > 0 {
				n -= given
				err = nil
				return true
			}
			return !errors.Is(err, unix.EAGAIN)
		})
		if waited != nil {
			return waited
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func spliceAll(from, to, most, flags int) (int64, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, most, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK|flags)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
