package boundlog

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// command is the first argument of the process that keeps a log.
const command = "onpath-instance-log"

// The descriptors that containerd's shim gives it: the program's output, and a
// pipe that it closes when it is ready.
const (
	stdout = 3 + iota
	stderr
	ready
)

// pipeSize is that of the pipes, in bytes. While nothing is kept they are emptied
// every pause: so a program that writes without end gets rid of 100 MiB a second,
// and neither it nor we take more of the CPU.
const (
	pipeSize = 1 << 20
	pause    = 10 * time.Millisecond
)

// URI tells containerd's shim to start program, which this package must be part of,
// for a log.
func URI(program, dir string, limit int64) *url.URL {
	return &url.URL{Scheme: "binary", Path: program, RawQuery: url.Values{command: {fmt.Sprintf("%d:%s", limit, dir)}}.Encode()}
}

// init is before main and before most packages' own: the process stays small, and
// the shim does not wait long for it.
func init() {
	if len(os.Args) != 3 || os.Args[1] != command || os.Getenv("CONTAINER_ID") == "" {
		return
	}
	if err := run(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "onpath log:", err)
		unix.Exit(1)
	}
	unix.Exit(0) // os.Exit sleeps for a second in programs with the race detector
}

func run(what string) error {
	limit, dir, _ := strings.Cut(what, ":")
	n, err := strconv.ParseInt(limit, 10, 64)
	if err != nil || n <= 0 || dir == "" {
		return errors.New("started by hand")
	}
	// It ends with the pipes, and not before: the program would get SIGPIPE.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
	l, err := Open(dir, n, time.Now)
	if err != nil {
		return err
	}
	if err := unix.Close(ready); err != nil {
		return err
	}
	return l.Drain([]int{stdout, stderr})
}

// Drain keeps what comes out of pipes until nobody holds their other ends.
func (l *File) Drain(fds []int) error {
	var pipes []unix.PollFd
	for _, fd := range fds {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeSize) // as it is where it may not grow
		if err := unix.SetNonblock(fd, true); err != nil {             // our end only
			return err
		}
		pipes = append(pipes, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	return drain(l, pipes)
}

// drain reads the pipes until nobody holds their other ends.
func drain(l *File, pipes []unix.PollFd) error {
	buf := make([]byte, 64<<10)
	for open := len(pipes); open > 0; {
		if _, err := unix.Poll(pipes, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		full := false
		for i := range pipes {
			p := &pipes[i]
			if p.Revents == 0 {
				continue
			}
			ended, f := empty(l, int(p.Fd), buf)
			full = full || f
			if ended {
				p.Fd = -1 // poll passes over it
				open--
			}
		}
		if full && open > 0 {
			time.Sleep(pause)
		}
	}
	l.Note(true)
	return nil
}

// empty reads what a pipe holds, once around at most.
func empty(l *File, fd int, buf []byte) (ended, full bool) {
	for sum := 0; sum < pipeSize; {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false, full
		case n <= 0:
			return true, full
		}
		full = l.Keep(buf[:n]) || full
		sum += n
	}
	return false, full
}
