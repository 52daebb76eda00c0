// Package offload switches off what network devices do for the kernel's stack, and asks
// how they receive packets.
package offload

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CompleteFrames are the features without which a device carries frames as on a wire:
// with their checksums, and none longer than its MTU allows.
var CompleteFrames = []string{"tx-*segmentation", "tx-gso-list", "tx-scatter-gather*", "tx-checksum*"}

// Commands of the ethtool ioctl (linux/ethtool.h).
const (
	ethtoolGetStrings    = 0x1b
	ethtoolGetSetInfo    = 0x37
	ethtoolSetFeatures   = 0x3b
	stringsOfFeatures    = 4
	ethtoolStringLen     = 32
	ethtoolHeaderOfNames = 12
)

// Disable switches features of a device off, in the network namespace
// of the calling thread. Names are ethtool's; one * stands for anything.
func Disable(device string, patterns []string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("offloads of %s: %w", device, err)
	}
	defer unix.Close(fd)
	names, err := featureNames(fd, device)
	if err != nil {
		return fmt.Errorf("offloads of %s: %w", device, err)
	}
	words := (len(names) + 31) / 32
	// struct ethtool_sfeatures: cmd, size, then pairs of valid and requested.
	b := make([]byte, 8+8*words)
	binary.NativeEndian.PutUint32(b, ethtoolSetFeatures)
	binary.NativeEndian.PutUint32(b[4:], uint32(words))
	for i, name := range names {
		if slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) }) {
			at := b[8+8*(i/32):]
			binary.NativeEndian.PutUint32(at, binary.NativeEndian.Uint32(at)|1<<(i%32))
		}
	}
	if err := ethtool(fd, device, b); err != nil {
		return fmt.Errorf("switch off offloads of %s: %w", device, err)
	}
	return nil
}

// matches knows one * in a pattern.
func matches(pattern, name string) bool {
	before, after, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	return len(name) >= len(before)+len(after) && strings.HasPrefix(name, before) && strings.HasSuffix(name, after)
}

func featureNames(fd int, device string) ([]string, error) {
	info := make([]byte, 20) // struct ethtool_sset_info with one count
	binary.NativeEndian.PutUint32(info, ethtoolGetSetInfo)
	binary.NativeEndian.PutUint64(info[8:], 1<<stringsOfFeatures)
	if err := ethtool(fd, device, info); err != nil {
		return nil, err
	}
	n := int(binary.NativeEndian.Uint32(info[16:]))
	b := make([]byte, ethtoolHeaderOfNames+n*ethtoolStringLen)
	binary.NativeEndian.PutUint32(b, ethtoolGetStrings)
	binary.NativeEndian.PutUint32(b[4:], stringsOfFeatures)
	binary.NativeEndian.PutUint32(b[8:], uint32(n))
	if err := ethtool(fd, device, b); err != nil {
		return nil, err
	}
	names := make([]string, n)
	for i := range names {
		s := b[ethtoolHeaderOfNames+i*ethtoolStringLen:][:ethtoolStringLen]
		name, _, _ := bytes.Cut(s, []byte{0})
		names[i] = string(name)
	}
	return names, nil
}

// HashesPorts tells whether a device shares UDP over IPv4 out to its queues by ports, too;
// known is false where its driver does not say.
func HashesPorts(device string) (ports, known bool) {
	const (
		udp4      = 2      // UDP_V4_FLOW
		byPorts   = 3 << 6 // RXH_L4_B_0_1 and RXH_L4_B_2_3
		infoBytes = 192    // struct ethtool_rxnfc
	)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, false
	}
	defer unix.Close(fd)
	b := make([]byte, infoBytes)
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GRXFH)
	binary.NativeEndian.PutUint32(b[4:], udp4)
	if ethtool(fd, device, b) != nil {
		return false, false
	}
	hash := binary.NativeEndian.Uint64(b[8:])
	return hash&byPorts == byPorts, hash != 0
}

// StripsTags tells whether a device takes VLAN tags off the frames that it receives.
func StripsTags(device string) bool {
	const stripsTags = 1 << 8 // ETH_FLAG_RXVLAN
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	b := make([]byte, 8) // struct ethtool_value
	binary.NativeEndian.PutUint32(b, unix.ETHTOOL_GFLAGS)
	return ethtool(fd, device, b) == nil && binary.NativeEndian.Uint32(b[4:])&stripsTags != 0
}

func ethtool(fd int, device string, data []byte) error {
	var ifr struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(ifr.name[:unix.IFNAMSIZ-1], device)
	ifr.data = unsafe.Pointer(&data[0])
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		return errno
	}
	return nil
}
