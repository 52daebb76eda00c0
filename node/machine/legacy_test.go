package machine

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// Old iptables' tables are read as the kernel really lays them out: a policy of
// drop is written into one here by the same interface that iptables uses.
func TestLegacyIptables(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	for file, c := range map[string]struct {
		v6                   bool
		family, level, entry int
		place                string
	}{
		legacyNames[0]: {false, unix.AF_INET, unix.SOL_IP, iptHead4, "iptables filter FORWARD"},
		legacyNames[1]: {true, unix.AF_INET6, unix.SOL_IPV6, iptHead6, "ip6tables filter FORWARD"},
	} {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			t.Logf("the kernel has no old tables for IPv6=%v", c.v6)
			continue
		}
		ns := filepath.Join(t.TempDir(), "ns")
		if err := netnsrun.Create(ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { netnsrun.Remove(ns) })
		err := netnsrun.Do(ns, func() error {
			fd, err := unix.Socket(c.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			_, err = legacyInfo(fd, c.level, "nat") // makes the table
			_, err2 := legacyInfo(fd, c.level, "filter")
			return errors.Join(err, err2)
		})
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOPROTOOPT) {
			t.Logf("the kernel cannot make the old tables for IPv6=%v: %v", c.v6, err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		f, err := inspectLegacy(ns)
		if err != nil || f.objection("eth0", transit{}) != "" {
			t.Errorf("IPv6=%v: empty tables that accept: %q, %v", c.v6, f.objection("eth0", transit{}), err)
		}
		if err := netnsrun.Do(ns, func() error { return dropForward(c.family, c.level, c.entry) }); err != nil {
			t.Fatalf("IPv6=%v: set the policy: %v", c.v6, err)
		}
		if f, err := inspectLegacy(ns); err != nil || f.drop != c.place {
			t.Errorf("IPv6=%v: policy drop: found %q, %v; want %q", c.v6, f.drop, err, c.place)
		}
	}
}

// dropForward replaces the filter table by one whose forward policy is drop.
func dropForward(family, level, entry int) error {
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	info, err := legacyInfo(fd, level, "filter")
	if err != nil {
		return err
	}
	buf := make([]byte, 40+int(info.size))
	copy(buf, info.name[:])
	binary.NativeEndian.PutUint32(buf[32:], info.size)
	if err := getsockopt(fd, level, iptGetEntries, unsafe.Pointer(&buf[0]), uint32(len(buf))); err != nil {
		return err
	}
	entries := buf[40:]
	drop := int32(-nfDrop - 1)
	binary.NativeEndian.PutUint32(entries[int(info.underflow[hookForward])+entry+32:], uint32(drop))

	// struct ipt_replace: name, valid_hooks, num_entries, size, hook_entry[5],
	// underflow[5], num_counters, counters pointer, entries.
	counters := make([]byte, 16*info.entries)
	put := func(b []byte, v ...uint32) []byte {
		for _, x := range v {
			b = binary.NativeEndian.AppendUint32(b, x)
		}
		return b
	}
	r := put(append([]byte(nil), info.name[:]...), info.validHooks, info.entries, info.size)
	r = put(put(r, info.hookEntry[:]...), info.underflow[:]...)
	r = put(r, info.entries)
	for len(r)%8 != 0 {
		r = append(r, 0)
	}
	r = binary.NativeEndian.AppendUint64(r, uint64(uintptr(unsafe.Pointer(&counters[0]))))
	r = append(r, entries...)
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), 64, uintptr(unsafe.Pointer(&r[0])), uintptr(len(r)), 0)
	runtime.KeepAlive(counters)
	if errno != 0 {
		return errno
	}
	return nil
}
