package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// Layouts and numbers of linux/netfilter_ipv4/ip_tables.h; ip6_tables.h has the
// same option numbers and another length of an entry's head.
const (
	iptGetInfo    = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO
	iptGetEntries = 65
	iptHooks      = 5
	hookForward   = 2
	iptHead4      = 112 // struct ipt_entry without matches
	iptHead6      = 168
	nfDrop        = 0
)

// iptInfo is struct ipt_getinfo.
type iptInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [iptHooks]uint32
	underflow  [iptHooks]uint32
	entries    uint32
	size       uint32
}

// inspectLegacy reads the tables of old iptables, which nftables does not show.
func inspectLegacy(path string) (f firewall, err error) {
	err = netnsrun.Do(path, func() error {
		for i, file := range legacyNames {
			data, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("read the names of iptables' tables: %w", err)
			}
			nat, filter := legacyTables(string(data))
			if err := f.readLegacy(i == 1, nat, filter); err != nil {
				return err
			}
		}
		return nil
	})
	return f, err
}

func (f *firewall) readLegacy(v6, nat, filter bool) error {
	family, level, place := unix.AF_INET, unix.SOL_IP, "iptables"
	if v6 {
		family, level, place = unix.AF_INET6, unix.SOL_IPV6, "ip6tables"
	}
	if !nat && !filter {
		return nil
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("open a socket to read %s: %w", place, err)
	}
	defer unix.Close(fd)
	if nat {
		info, err := legacyInfo(fd, level, "nat")
		if err != nil {
			return fmt.Errorf("read %s table nat: %w", place, err)
		}
		// One entry per built-in chain and one that ends the table are always there.
		if info.entries > builtIn(info.validHooks)+1 {
			f.nat = append(f.nat, natRule{place: place + " nat"})
		}
	}
	if !filter {
		return nil
	}
	info, err := legacyInfo(fd, level, "filter")
	if err != nil {
		return fmt.Errorf("read %s table filter: %w", place, err)
	}
	drop, err := legacyForwardDrops(fd, level, info, v6)
	if err != nil {
		return fmt.Errorf("read %s table filter: %w", place, err)
	}
	if drop {
		f.drop = place + " filter FORWARD"
	}
	return nil
}

func builtIn(hooks uint32) (n uint32) {
	for ; hooks != 0; hooks &= hooks - 1 {
		n++
	}
	return n
}

func legacyInfo(fd, level int, table string) (iptInfo, error) {
	var info iptInfo
	copy(info.name[:], table)
	return info, getsockopt(fd, level, iptGetInfo, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info)))
}

// legacyForwardDrops reads the verdict of the forward chain's policy.
func legacyForwardDrops(fd, level int, info iptInfo, v6 bool) (bool, error) {
	const head = 40 // struct ipt_get_entries: name, size, padding to 8
	buf := make([]byte, head+int(info.size))
	copy(buf, info.name[:])
	binary.NativeEndian.PutUint32(buf[32:], info.size)
	if err := getsockopt(fd, level, iptGetEntries, unsafe.Pointer(&buf[0]), uint32(len(buf))); err != nil {
		return false, err
	}
	entry := iptHead4
	if v6 {
		entry = iptHead6
	}
	// The policy is a standard target: struct xt_entry_target (32 bytes), then
	// the verdict, which is -NF_DROP-1 for drop.
	at := head + int(info.underflow[hookForward]) + entry + 32
	if at+4 > len(buf) {
		return false, errors.New("the table is shorter than it says")
	}
	return int32(binary.NativeEndian.Uint32(buf[at:])) == -nfDrop-1, nil
}

func getsockopt(fd, level, option int, p unsafe.Pointer, size uint32) error {
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(p), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
