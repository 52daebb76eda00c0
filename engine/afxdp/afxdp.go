// Package afxdp moves whole Ethernet frames between a network device and user
// space by AF_XDP sockets (Linux: Documentation/networking/af_xdp.rst).
//
// Who has the rights opens a socket in the device's network namespace (Open) and
// may hand its files to a process without any (Files); that process maps rings and
// frames (Map). A small XDP program at the device decides what comes by the socket
// and what goes to the kernel's own stack; it goes with the last holder of its link.
package afxdp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FrameSize is the room for one frame in bytes, of which the kernel keeps headroom
// before what it receives. It bounds a frame; MaxFrame is what fits.
const (
	FrameSize = 2048
	headroom  = 256 // XDP_PACKET_HEADROOM
	MaxFrame  = FrameSize - headroom
)

// Config says what to open.
type Config struct {
	Device string
	// Frames is the number of frame buffers, a power of two; half of them receive.
	Frames int
	// Stack is what the kernel's stack is given instead of the socket.
	Stack Stack
}

// Files are an opened socket: everything that Map needs, and what must stay open.
type Files struct {
	Socket *os.File
	Memory *os.File // the frames
	Link   *os.File // holds the program at the device
}

// Close closes those that are open.
func (f *Files) Close() error {
	var errs []error
	for _, x := range []*os.File{f.Socket, f.Memory, f.Link} {
		if x != nil {
			errs = append(errs, x.Close())
		}
	}
	return errors.Join(errs...)
}

// Open opens a socket at the first queue of a device in the network namespace of the
// calling thread. It needs the rights to load XDP programs and to lock memory.
func Open(c Config) (_ *Files, err error) {
	if c.Frames < 64 || c.Frames&(c.Frames-1) != 0 {
		return nil, fmt.Errorf("open AF_XDP socket: %d frames is no power of two from 64 on", c.Frames)
	}
	dev, err := net.InterfaceByName(c.Device)
	if err != nil {
		return nil, fmt.Errorf("open AF_XDP socket at %s: %w", c.Device, err)
	}
	f := &Files{}
	defer func() {
		if err != nil {
			_ = f.Close()
			err = fmt.Errorf("open AF_XDP socket at %s: %w", c.Device, err)
		}
	}()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("the kernel has none, or this process no CAP_NET_RAW: %w", err)
	}
	f.Socket = os.NewFile(uintptr(fd), "xsk")
	if f.Memory, err = frameMemory(c.Frames); err != nil {
		return nil, err
	}
	if err := register(fd, f.Memory, c.Frames); err != nil {
		return nil, err
	}
	if err := bind(fd, dev.Index); err != nil {
		return nil, err
	}
	f.Link, err = attach(dev.Index, fd, c.Stack)
	return f, err
}

func frameMemory(frames int) (*os.File, error) {
	fd, err := unix.MemfdCreate("onpath-frames", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make memory for frames: %w", err)
	}
	f := os.NewFile(uintptr(fd), "frames")
	if err := f.Truncate(int64(frames) * FrameSize); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("make memory for %d frames: %w", frames, err)
	}
	// Who holds the file can not make it shorter under the other's mapping.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("seal memory for frames: %w", err)
	}
	return f, nil
}

// register gives the kernel the frames and asks for the four rings.
func register(fd int, memory *os.File, frames int) error {
	size := frames * FrameSize
	mem, err := unix.Mmap(int(memory.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map %d frames: %w", frames, err)
	}
	defer func() { _ = unix.Munmap(mem) }() // the kernel holds the pages
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&mem[0]))), Len: uint64(size), Size: FrameSize}
	if err := setsockopt(fd, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg)); err != nil {
		return fmt.Errorf("register %d frames (locked memory may be used up): %w", frames, err)
	}
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING, unix.XDP_TX_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, frames); err != nil {
			return fmt.Errorf("make ring %d of %d entries: %w", ring, frames, err)
		}
	}
	return nil
}

func setsockopt(fd, name int, p unsafe.Pointer, n uintptr) error {
	if _, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(name), uintptr(p), n, 0); e != 0 {
		return e
	}
	return nil
}

// bind copies frames: devices of namespaces (veth) cannot receive into user memory.
func bind(fd, device int) error {
	a := &unix.SockaddrXDP{Flags: unix.XDP_COPY | unix.XDP_USE_NEED_WAKEUP, Ifindex: uint32(device)}
	var err error
	for range 100 { // a socket that has just gone holds the queue for some milliseconds
		if err = unix.Bind(fd, a); !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("bind to device %d: %w", device, err)
	}
	return nil
}
