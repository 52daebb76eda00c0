package accel

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
)

// kept are the rights that relays use as long as they live: to enter the namespaces of
// instances (SYS_ADMIN, which loads programs, too), to take over what passes there, to read SYNs,
// and to begin legs with the client's address and port.
var kept = []int{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE}

// Confine takes from this process what relays do not need, for good: all other rights of root,
// all of them from programs that it might begin, and to write, make or mount any file, but in a
// folder where programs of the kernel are kept. It is called once the control socket is there.
func Confine(pins string) error {
	var keep uint64
	for _, c := range kept {
		keep |= 1 << c
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if _, _, e := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); e != 0 && !errors.Is(e, unix.EINVAL) {
			return fmt.Errorf("drop capability %d for good: %w", c, e)
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have, want [2]unix.CapUserData
	if err := unix.Capget(&head, &have[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	for i := range want { // of those that it has; a test may have fewer
		bits := uint32(keep>>(32*i)) & have[i].Permitted
		want[i] = unix.CapUserData{Permitted: bits, Effective: bits}
	}
	if _, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&want[0])), 0); e != 0 {
		return fmt.Errorf("drop capabilities: %w", e)
	}
	if _, _, e := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("renounce new privileges: %w", e)
	}
	rules := []landlock.Rule{landlock.RODirs("/")}
	if pins != "" {
		rules = append(rules, landlock.RWDirs(pins))
	}
	if err := landlock.V9.BestEffort().RestrictPaths(rules...); err != nil {
		return fmt.Errorf("leave all files as they are (landlock): %w", err)
	}
	return nil
}
