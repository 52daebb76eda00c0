package engine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"github.com/elastic/go-seccomp-bpf"
	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// The limits of an engine's process beside its control group's.
const (
	maxOpenFiles = 2048
	maxThreads   = 64
)

// Isolate takes from this process everything that an engine does not need: file systems,
// the rights of root, system calls. It is to be called in mount, process and IPC
// namespaces of its own, and before anything else runs. empty is a folder that becomes
// the root; uid and gid are what the process then is.
func Isolate(empty string, uid, gid int) error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"empty the root", func() error { return emptyRoot(empty) }},
		{"limit the process", limitProcess},
		{"drop the rights of root", func() error { return becomeNobody(uid, gid) }},
		{"restrict by landlock", func() error { return landlock.V9.BestEffort().Restrict() }},
		{"restrict system calls", restrictCalls},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("isolate the engine: %s: %w", step.what, err)
		}
	}
	return nil
}

// emptyRoot makes an empty, read-only file system the root, and lets go of all others.
func emptyRoot(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to itself: %w", err)
	}
	if err := unix.Mount("onpath", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,nr_inodes=2,mode=0555"); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change to it: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the old one: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

func limitProcess() error {
	for limit, most := range map[int]uint64{
		unix.RLIMIT_NOFILE: maxOpenFiles, unix.RLIMIT_NPROC: maxThreads,
		unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: uint64(onpath.MaxModuleDisk),
		unix.RLIMIT_MEMLOCK: 0, unix.RLIMIT_MSGQUEUE: 0,
	} {
		if err := unix.Setrlimit(limit, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("resource %d: %w", limit, err)
		}
	}
	return nil
}

// becomeNobody gives up all rights, of all threads, for good.
func becomeNobody(uid, gid int) error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if _, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); e != 0 && !errors.Is(e, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", c, e)
		}
	}
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("leave all groups: %w", err)
	}
	if err := syscall.Setgid(gid); err != nil {
		return fmt.Errorf("become group %d: %w", gid, err)
	}
	if err := syscall.Setuid(uid); err != nil {
		return fmt.Errorf("become user %d: %w", uid, err)
	}
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("renounce new privileges: %w", e)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("refuse to be looked into: %w", err)
	}
	// Who becomes another user forgets that it is to end with its parent.
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

// calls are those that Go's runtime makes, and an engine with sockets that others opened.
var calls = []string{
	"read", "write", "pread64", "pwrite64", "close", "fstat", "lseek", "mmap", "mprotect", "munmap", "mremap", "madvise", "brk", "mincore",
	"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "tgkill", "getpid", "gettid", "restart_syscall",
	"nanosleep", "clock_nanosleep", "clock_gettime", "gettimeofday", "futex", "sched_yield", "sched_getaffinity",
	"clone", "clone3", "exit", "exit_group", "set_robust_list", "set_tid_address", "rseq", "prctl", "getrandom",
	"epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "eventfd2", "pipe2", "ppoll", "fcntl",
	"sendto", "recvfrom", "sendmsg", "recvmsg", "accept4", "getsockname", "getpeername", "getsockopt", "setsockopt", "shutdown",
	"timer_create", "timer_settime", "timer_delete", "setitimer", "getrlimit", "prlimit64",
}

// oldCalls are those that only older architectures have.
var oldCalls = map[string][]string{"amd64": {"poll", "epoll_wait", "arch_prctl"}}

// restrictCalls has all other system calls fail, in all threads.
func restrictCalls() error {
	return seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionErrno,
		Syscalls:      []seccomp.SyscallGroup{{Action: seccomp.ActionAllow, Names: append(oldCalls[runtime.GOARCH], calls...)}},
	}})
}
