package testnet

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of the ethtool ioctl that set one offload (linux/ethtool.h).
const (
	ethtoolTxChecksum = 0x17
	ethtoolSegmentTCP = 0x1f
	ethtoolSegment    = 0x24 // GSO
	ethtoolGRO        = 0x2c
)

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ cmd, data uint32 }

// setGRO switches receiving in batches, in the calling thread's namespace.
func setGRO(dev string, on bool) error {
	value := uint32(0)
	if on {
		value = 1
	}
	return ethtool(dev, ethtoolValue{ethtoolGRO, value})
}

// noTransmitOffload has a device's packets leave complete.
func noTransmitOffload(dev string) error {
	return errors.Join(ethtool(dev, ethtoolValue{ethtoolSegmentTCP, 0}), ethtool(dev, ethtoolValue{ethtoolSegment, 0}),
		ethtool(dev, ethtoolValue{ethtoolTxChecksum, 0}))
}

func ethtool(dev string, v ethtoolValue) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set an offload of %s: %w", dev, err)
	}
	defer unix.Close(fd)
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], dev)
	request.data = unsafe.Pointer(&v)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("set an offload of %s: %w", dev, errno)
	}
	return nil
}
