package relay

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batch is how many frames one system call receives or sends.
const batch = 64

// receiveBuffer is what the kernel may hold for us while we sleep, in bytes.
const receiveBuffer = 32 << 20

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// socket is a packet socket bound to one device, not blocking, with
// virtio-net headers.
type socket struct {
	fd   int
	name string
}

func openSocket(device string, timestamps bool) (*socket, error) {
	nic, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("relay: device %s: %w", device, err)
	}
	// Protocol 0 receives nothing until the socket is bound to its device.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("relay: packet socket: %w", err)
	}
	s := &socket{fd: fd, name: device}
	options := []struct {
		level, option, value int
		what                 string
	}{
		{unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1, "PACKET_VNET_HDR"},
		{unix.SOL_PACKET, unix.PACKET_AUXDATA, 1, "PACKET_AUXDATA"},
		{unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1, "PACKET_QDISC_BYPASS"},
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING"},
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer, "SO_RCVBUFFORCE"},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8 << 20, "SO_SNDBUFFORCE"},
	}
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.option, o.value); err != nil {
			s.close()
			return nil, fmt.Errorf("relay: %s on %s: %w", o.what, device, err)
		}
	}
	if timestamps {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300 /* ETH_P_ALL, big endian */, Ifindex: nic.Index})
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("relay: %s: %w", device, err)
	}
	return s, nil
}

func (s *socket) close() { unix.Close(s.fd) }

// missed is how many frames the kernel dropped since the last call because
// the receive buffer was full.
func (s *socket) missed() uint64 {
	st, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0
	}
	return uint64(st.Drops)
}

// reader receives batches.
type reader struct {
	messages [batch]mmsghdr
	vectors  [batch]unix.Iovec
	buffers  []byte
	control  []byte
	stride   int
}

const controlLen = 128 // of one message: struct tpacket_auxdata and struct timespec

func newReader() *reader {
	r := &reader{stride: vnetLen + maxGSOSize + vlanLen}
	r.buffers = make([]byte, batch*r.stride)
	r.control = make([]byte, batch*controlLen)
	for i := range batch {
		r.vectors[i] = unix.Iovec{Base: &r.buffers[i*r.stride]}
		r.vectors[i].SetLen(r.stride - vlanLen)
		r.messages[i].hdr.Iov = &r.vectors[i]
		r.messages[i].hdr.SetIovlen(1)
		r.messages[i].hdr.Control = &r.control[i*controlLen]
	}
	return r
}

// receive fetches what is there, up to a batch, without waiting.
func (r *reader) receive(s *socket) (int, error) {
	for i := range batch {
		r.messages[i].hdr.SetControllen(controlLen)
	}
	for {
		// A raw call: it does not block, and telling Go's scheduler of each
		// would cost more than the call.
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&r.messages[0])), batch, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, nil
		case unix.ENETDOWN: // the device is down: reported once, frames come again when it is up
			return 0, nil
		default:
			return 0, fmt.Errorf("relay: receive on %s: %w", s.name, os.NewSyscallError("recvmmsg", errno))
		}
	}
}

// frame is the i-th frame received, complete with its VLAN tag, and its time
// of arrival on the real-time clock in ns, 0 if unknown.
func (r *reader) frame(i int) (b []byte, arrival int64) {
	m := &r.messages[i]
	b = r.buffers[i*r.stride : i*r.stride+min(int(m.len), r.stride-vlanLen)]
	control := r.control[i*controlLen:][:m.hdr.Controllen]
	for len(control) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
		if int(h.Len) < unix.SizeofCmsghdr || int(h.Len) > len(control) {
			break
		}
		data := control[unix.SizeofCmsghdr:h.Len]
		switch {
		case h.Level == unix.SOL_SOCKET && h.Type == unix.SO_TIMESTAMPNS && len(data) >= 16:
			arrival = int64(binary.NativeEndian.Uint64(data))*1e9 + int64(binary.NativeEndian.Uint64(data[8:]))
		case h.Level == unix.SOL_PACKET && h.Type == unix.PACKET_AUXDATA && len(data) >= 20:
			if status := binary.NativeEndian.Uint32(data); status&unix.TP_STATUS_VLAN_VALID != 0 && len(b) >= vnetLen+ethLen {
				b = insertVLAN(b, binary.NativeEndian.Uint16(data[18:]), binary.NativeEndian.Uint16(data[16:]))
			}
		}
		control = control[min(unix.CmsgSpace(len(data)), len(control)):]
	}
	return b, arrival
}

// writer sends batches.
type writer struct {
	messages [batch]mmsghdr
	vectors  [batch]unix.Iovec
}

func newWriter() *writer {
	w := &writer{}
	for i := range batch {
		w.messages[i].hdr.Iov = &w.vectors[i]
		w.messages[i].hdr.SetIovlen(1)
	}
	return w
}

// set makes b the i-th frame of the next batch.
func (w *writer) set(i int, b []byte) {
	w.vectors[i].Base = &b[0]
	w.vectors[i].SetLen(len(b))
}

// send sends the first n frames and returns how many the kernel took and how
// many it refused; together they are n.
func (w *writer) send(s *socket, n int) (taken, refused int) {
	for at := 0; at < n; {
		sent, _, errno := syscall.RawSyscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&w.messages[at])), uintptr(n-at), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			taken += int(sent)
			at += int(sent)
		case unix.EINTR:
		default: // the frame at the head cannot be sent; a real link would have lost it too
			refused++
			at++
		}
	}
	return taken, refused
}
