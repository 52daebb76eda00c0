package container

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// runcRoot is where containerd's shim has runc keep what it knows of containers.
const runcRoot = "/run/containerd/runc"

// startPipe is what runc's init of an instance opens for writing, one byte, before it becomes
// the program: it waits there until somebody reads. "runc start" reads, and removes it.
func (d *Driver) startPipe(id string) string {
	return filepath.Join(runcRoot, d.opt.Namespace, id, "exec.fifo")
}

// How long init may take to write its byte, and how often is looked whether runc has read it.
const (
	beginTime = time.Second
	takenTick = time.Millisecond
)

// headStart is how long at most a program for which packets wait has the processors to itself:
// containerd's shim and runc work as long as many a program takes to start. Once it is ready,
// containerd is needed to resize it.
const headStart = 200 * time.Millisecond

// begin lets the program begin, and has containerd start the task meanwhile: the way by its
// shim to runc takes longer than many a program's own start. The byte stays in the pipe until
// runc reads it. Without such a pipe the program begins when containerd has it begin.
func (c *created) begin(ctx context.Context) error {
	started := make(chan error, 1)
	start := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		defer close(c.proc.taken)
		started <- c.task.Start(ctx)
	}
	if !c.r.Awaited {
		go start()
	}
	pipe, err := unix.Open(c.d.startPipe(c.r.ID), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil && !readable(pipe, beginTime) { // another runc, which waits otherwise
		unix.Close(pipe)
		err = os.ErrNotExist
	}
	if err != nil {
		if c.r.Awaited {
			start()
		}
		return <-started
	}
	c.d.begins.Go(func() {
		if c.r.Awaited {
			select {
			case <-time.After(headStart):
			case <-c.proc.needed:
			case <-c.proc.over:
			case <-c.d.ctx.Done():
			}
			go start()
		}
		// Of a program that has ended already runc says so, and containerd knows how.
		if err := whenTaken(pipe, started); err != nil && isInit(int(c.task.Pid())) {
			c.d.log.Error("containerd does not start a task; it is ended", "instance", c.r.ID, "err", err)
			c.d.discard(c.r.ID)
		}
	})
	return nil
}

func readable(fd int, within time.Duration) bool {
	for until := time.Now().Add(within); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, time.Until(until))/time.Millisecond))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// whenTaken closes the pipe once runc has read the byte, without which it would read on, and
// gives what became of the start.
func whenTaken(pipe int, started <-chan error) error {
	tick := time.NewTicker(takenTick)
	defer tick.Stop()
	for {
		select {
		case err := <-started:
			unix.Close(pipe)
			return err
		case <-tick.C:
		}
		if n, err := unix.IoctlGetInt(pipe, unix.TIOCINQ); err != nil || n == 0 {
			unix.Close(pipe)
			return <-started
		}
	}
}

// finishBegin gives runc its byte where an agent ended in between: else runc would wait for it
// as long as the program runs, and the shim for runc.
func (d *Driver) finishBegin(id string) {
	pipe, err := unix.Open(d.startPipe(id), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return // nobody reads
	}
	_, _ = unix.Write(pipe, []byte("0"))
	unix.Close(pipe)
}
