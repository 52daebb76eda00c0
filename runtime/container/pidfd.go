package container

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// pidWatch notices the end of a process that is not our child, within the time
// the scheduler needs.
type pidWatch struct{ file *os.File }

// watchPid opens a watch; os.ErrProcessDone means that there is no such process,
// any more or, with the number 0 of a task whose making was cut short, yet.
func watchPid(pid int) (*pidWatch, error) {
	if pid <= 0 {
		return nil, os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.EINVAL) { // PIDFD_NONBLOCK needs Linux 5.10
		if fd, err = unix.PidfdOpen(pid, 0); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if errors.Is(err, unix.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return &pidWatch{os.NewFile(uintptr(fd), "pidfd")}, nil
}

// wait returns nil once the process has ended, or ctx's error.
func (w *pidWatch) wait(ctx context.Context) error {
	defer w.file.Close()
	stop := context.AfterFunc(ctx, func() { w.file.Close() })
	defer stop()
	conn, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	err = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds, 0)
		return n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func waitPid(ctx context.Context, pid int) error {
	w, err := watchPid(pid)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	return w.wait(ctx)
}
