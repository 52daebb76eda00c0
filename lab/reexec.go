package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Names under which the lab starts the running program once more. They are
// argument zero, so that no command line of the program itself is meant.
const (
	nameEnter = "onpath-lab-enter"
	nameHost  = "onpath-lab-host"
	nameLinks = "onpath-lab-links"
	nameDelay = "onpath-lab-delay"
)

// self is the running program, also when its file has been removed.
const self = "/proc/self/exe"

// init does a helper's work before main begins. It must: a namespace is
// entered by a thread, and only here is it certain which thread runs.
func init() {
	if len(os.Args) == 0 {
		return
	}
	var helper func(args []string) error
	switch os.Args[0] {
	case nameEnter:
		helper = enterMain
	case nameHost:
		helper = hostMain
	case nameLinks:
		helper = LinkMain
	case nameDelay:
		helper = delayMain
	default:
		return
	}
	runtime.LockOSThread()
	// unix.Exit, because os.Exit sleeps for a second in programs that are built
	// with the race detector.
	if err := helper(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "onpath lab:", err)
		if errors.Is(err, exec.ErrNotFound) {
			unix.Exit(127) // as a shell does
		}
		unix.Exit(126)
	}
	unix.Exit(0)
}

// barrier is the file descriptor on which a helper waits until it has been
// recorded. If the starter dies before that, the helper ends.
const barrier = 3

// fate is the file descriptor on which a command's helper says why it did not become
// its program. If it does, the descriptor closes without a word.
const fate = 4

func waitAtBarrier() error {
	f := os.NewFile(barrier, "gate")
	defer f.Close()
	if _, err := io.ReadFull(f, make([]byte, 1)); err != nil {
		return errors.New("whoever started this died before it was recorded")
	}
	return nil
}

// enterMain becomes a program in a host: NET MNT NAME GATE PROGRAM ARGUMENT….
// MNT is empty for a host that shares the machine's mounts; GATE is "gate" if
// the gate is to be waited at.
func enterMain(args []string) error {
	if len(args) < 5 {
		return errors.New("helper called by hand")
	}
	net, mnt, name := args[0], args[1], args[2]
	if args[3] != "gate" {
		return become(net, mnt, name, args[4:])
	}
	unix.CloseOnExec(fate)
	if err := waitAtBarrier(); err != nil {
		return err
	}
	err := become(net, mnt, name, args[4:])
	_, _ = unix.Write(fate, []byte(cause(err)))
	return err
}

// cause is err without the names that whoever is told knows.
func cause(err error) string {
	var missing *exec.Error
	if errors.As(err, &missing) {
		err = missing.Err
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	return err.Error()
}

// become makes the helper a program in a host; it returns only if that fails.
func become(net, mnt, name string, command []string) error {
	if err := enter(net, mnt, name); err != nil {
		return fmt.Errorf("host %s: %w", name, err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("host %s: %w", name, err)
	}
	signal.Reset()
	return fmt.Errorf("host %s: %s: %w", name, path, syscall.Exec(path, command, os.Environ()))
}

// enter moves the calling thread, which must be locked, into a host. The host
// name is the thread's own: namespaces of names cost nothing and need not be
// kept.
func enter(net, mnt, name string) error {
	directory, _ := os.Getwd()
	var mounts int
	if mnt != "" { // opened before, because it cannot be seen from inside
		var err error
		if mounts, err = unix.Open(mnt, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("mount namespace %s: %w", mnt, err)
		}
	}
	if err := setns(net, unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWUTS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	if mnt == "" {
		return nil
	}
	if err := unix.Setns(mounts, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mount namespace: %w", err)
	}
	if os.Chdir(directory) != nil {
		return os.Chdir("/")
	}
	return nil
}

func setns(path string, kind int) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, kind); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

// inNetNS calls f on a thread that is in the network namespace at path, for
// what the kernel shows by thread, such as /proc/sys/net.
func inNetNS(path string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		before, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- err
			return
		}
		defer unix.Close(before)
		if err = setns(path, unix.CLONE_NEWNET); err == nil {
			err = f()
		}
		// A thread that cannot go back stays locked and ends with its goroutine.
		if unix.Setns(before, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}
