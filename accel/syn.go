package accel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// synWatch reads the first SYN of each IPv4 connection that comes in by a device. The kernel
// answers it; the relay wants to know half a round trip before accept(2) says so.
type synWatch struct {
	file *os.File
	done chan struct{}
}

const (
	synBytes    = 40      // IPv4 and TCP headers without options
	synQueue    = 1 << 20 // bytes of SYNs that wait to be read, some thousand
	mostHeaders = 120     // and with all options; data behind them is not read

	synOnly  = 0x02 // of FIN, SYN, RST and ACK
	synFlags = 0x17
	rstACK   = 0x14
)

// watchSYNs begins. The bytes of a SYN are the next one's after on.
func watchSYNs(device string, on func(client, origin netip.AddrPort, syn []byte)) (*synWatch, error) {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", device, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	if err := prepareSYNSocket(fd, dev.Index); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch SYNs at %s: %w", device, err)
	}
	w := &synWatch{file: os.NewFile(uintptr(fd), "syns"), done: make(chan struct{})}
	go w.read(on)
	return w, nil
}

func prepareSYNSocket(fd, index int) error {
	program, err := assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OUTGOING, SkipFalse: 9},
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipFalse: 7},
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 5}, // not the first fragment
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: 13, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: synFlags},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: synOnly, SkipFalse: 1},
		bpf.RetConstant{Val: mostHeaders},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	if err := attachFilter(fd, program); err != nil {
		return err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, synQueue) // a SYN that is lost costs time
	proto := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_IP))
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: index})
}

func assemble(program []bpf.Instruction) ([]unix.SockFilter, error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, f := range raw {
		filter[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	return filter, nil
}

func attachFilter(fd int, filter []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
}

func (w *synWatch) read(on func(client, origin netip.AddrPort, syn []byte)) {
	defer close(w.done)
	raw, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, mostHeaders)
	for {
		var n int
		var failed error
		err := raw.Read(func(fd uintptr) bool {
			n, failed = unix.Read(int(fd), buf)
			return !errors.Is(failed, unix.EAGAIN)
		})
		if err != nil {
			return // closed
		}
		if failed != nil {
			continue // ENETDOWN is told once, when the device goes down; the socket stays
		}
		if client, origin, ok := parseSYN(buf[:n]); ok {
			on(client, origin, buf[:n])
		}
	}
}

func parseSYN(b []byte) (client, origin netip.AddrPort, ok bool) {
	if len(b) < synBytes || b[0]>>4 != 4 {
		return client, origin, false
	}
	size := ipSize(b)
	if size < 20 || len(b) < size+20 {
		return client, origin, false
	}
	from, to := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	tcp := b[size:]
	if tcpSize(tcp) < 20 || len(tcp) < tcpSize(tcp) {
		return client, origin, false
	}
	return netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp)), netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:])), true
}

// segmentOf is the largest segment that a SYN announces; 0: none.
func segmentOf(syn []byte) int {
	const head, end, none, segment = 20, 0, 1, 2
	tcp := syn[ipSize(syn):]
	options := tcp[head:tcpSize(tcp)]
	for len(options) >= 2 && options[0] != end {
		size := int(options[1])
		if options[0] == none {
			size = 1
		} else if options[0] == segment && size == 4 && len(options) >= size {
			return int(binary.BigEndian.Uint16(options[2:]))
		}
		if size == 0 || size > len(options) {
			break
		}
		options = options[size:]
	}
	return 0
}

func (w *synWatch) close() {
	w.file.Close()
	<-w.done
}
