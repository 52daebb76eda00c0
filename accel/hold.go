package accel

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// loopback is the index of lo in every network namespace.
const loopback = 1

// heldFilter drops SYNs that a listener gets by another device than lo. What a client sends
// again is not answered either: answer decides.
func heldFilter() ([]unix.SockFilter, error) {
	return assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 13, Size: 1}, // data begins with TCP's header
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: synFlags},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: synOnly, SkipFalse: 2},
		bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: loopback, SkipFalse: 1},
		bpf.RetConstant{Val: 0xffffffff},
		bpf.RetConstant{Val: 0},
	})
}

// SYN is the first packet of a connection.
type SYN struct {
	Client, Origin netip.AddrPort
	Segment        int // the largest that the client takes, bytes; 0: it does not say
	// Answer is nil where the kernel has answered. Otherwise it has the kernel do so, or says
	// that there is no such connection, and why. It may be called from anywhere, or never:
	// silence, after which the client sends the SYN again.
	Answer func(failed error)
}

// answerer answers SYNs that are held, in the network namespace where it was made.
type answerer struct{ file *os.File }

func newAnswerer() (*answerer, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return nil, os.NewSyscallError("open a socket to answer SYNs: socket", err)
	}
	return &answerer{os.NewFile(uintptr(fd), "answers")}, nil
}

// answer gives a SYN to the listener, by lo, or tells the client what keeps it from being
// answered: that nobody listens, or that no way leads there. Of all else nothing is told.
func (a *answerer) answer(syn []byte, failed error) error {
	if failed == nil {
		return a.send(whole(syn), unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: loopback}))
	}
	if errors.Is(failed, unix.ECONNREFUSED) {
		return a.send(refusal(syn), nil)
	}
	for code, is := range unreachable {
		if errors.Is(failed, is) {
			return a.send(unreachableFor(syn, code), nil)
		}
	}
	return nil
}

// send sends a packet with its IP header.
func (a *answerer) send(packet, control []byte) error {
	raw, err := a.file.SyscallConn()
	if err != nil {
		return err
	}
	to := &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])}
	failed := raw.Control(func(fd uintptr) { err = unix.Sendmsg(int(fd), packet, control, to, 0) })
	return errors.Join(failed, err)
}

func (a *answerer) close() error { return a.file.Close() }

// unreachable are codes of ICMP's type 3, and the errors as which the kernel tells them.
var unreachable = map[byte]syscall.Errno{0: unix.ENETUNREACH, 1: unix.EHOSTUNREACH}

// whole is a SYN without data, which a listener does not take, and with the checksum that a
// device may have been left to write.
func whole(syn []byte) []byte {
	size := ipSize(syn)
	b := append([]byte(nil), syn[:size+tcpSize(syn[size:])]...)
	b[6], b[7] = b[6]&dontFragment, 0 // it is no fragment of anything more
	seal(b, size)
	return b
}

// refusal is the answer of a host where nobody listens.
func refusal(syn []byte) []byte {
	const ip, tcp = 20, 20
	from := syn[ipSize(syn):]
	data := int(binary.BigEndian.Uint16(syn[2:])) - ipSize(syn) - tcpSize(from)
	b := header4(unix.IPPROTO_TCP, ip+tcp, syn)
	t := b[ip:]
	copy(t, from[2:4])
	copy(t[2:], from[:2])
	binary.BigEndian.PutUint32(t[8:], binary.BigEndian.Uint32(from[4:])+1+uint32(max(data, 0)))
	t[12], t[13] = tcp/4<<4, rstACK
	seal(b, ip)
	return b
}

// unreachableFor is the ICMP error of a router that has no way to the origin.
func unreachableFor(syn []byte, code byte) []byte {
	const ip, icmp = 20, 8
	quoted := syn[:ipSize(syn)+8] // RFC 792
	b := header4(unix.IPPROTO_ICMP, ip+icmp+len(quoted), syn)
	b[ip], b[ip+1] = 3, code
	copy(b[ip+icmp:], quoted)
	binary.BigEndian.PutUint16(b[ip+2:], checksum(b[ip:], 0))
	return b
}

// header4 begins a packet to where another came from. The kernel writes its length and checksum.
func header4(protocol byte, size int, syn []byte) []byte {
	b := make([]byte, size)
	b[0], b[6], b[8], b[9] = 0x45, dontFragment, 64, protocol
	copy(b[12:], syn[16:20])
	copy(b[16:], syn[12:16])
	return b
}

// seal writes the checksum of the TCP segment behind an IP header.
func seal(packet []byte, size int) {
	tcp := packet[size:]
	tcp[16], tcp[17] = 0, 0
	pseudo := unix.IPPROTO_TCP + uint32(len(tcp))
	for i := 12; i < 20; i += 2 {
		pseudo += uint32(binary.BigEndian.Uint16(packet[i:]))
	}
	binary.BigEndian.PutUint16(tcp[16:], checksum(tcp, pseudo))
}

const dontFragment = 0x40 // of the high byte of flags and fragment offset

func checksum(b []byte, sum uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func ipSize(packet []byte) int { return int(packet[0]&15) * 4 }

func tcpSize(segment []byte) int { return int(segment[12]>>4) * 4 }
