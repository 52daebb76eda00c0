// Package queue is a packet function in user space, as many are built: netfilter
// queues what is forwarded to a process, which looks at each packet and gives a
// verdict. It stands for all that copy packets to user space.
package queue

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// number of the queue.
const number = 0

// length is how many packets may wait for the process.
const length = 4096

// Install has what this namespace forwards queued. Kernels without nftables' own
// queue statement have the target of iptables behind a compatibility layer.
func Install() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("talk to nftables: %w", err)
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "onpath-bench"})
	ch := c.AddChain(&nftables.Chain{Name: "forward", Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	info := xt.Unknown(make([]byte, 8)) // struct xt_NFQ_info, aligned: queue 0
	c.AddRule(&nftables.Rule{Table: t, Chain: ch, Exprs: []expr.Any{&expr.Target{Name: "NFQUEUE", Rev: 0, Info: &info}}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("queue what is forwarded: %w", err)
	}
	return nil
}

// The messages and attributes of nfnetlink_queue (linux/netfilter/nfnetlink_queue.h).
const (
	subsystem   = 3 << 8
	msgPacket   = 0
	msgVerdict  = 1
	msgConfig   = 2
	attrConfig  = 1
	attrParams  = 2
	attrLength  = 3
	attrHeader  = 1
	attrVerdict = 2
	commandBind = 1
	copyPacket  = 2
	accept      = 1
)

// copied is how much of each packet the process gets, bytes.
const copied = 2048

// Serve gives verdicts until ctx ends; ready is called once it can.
func Serve(ctx context.Context, ready func()) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ready()
	s := &server{fd: fd, in: make([]byte, 1<<16)}
	for ctx.Err() == nil {
		if err := s.turn(); err != nil {
			return err
		}
	}
	return nil
}

func open() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, fmt.Errorf("open a queue: %w", err)
	}
	tv := unix.Timeval{Usec: 100_000} // to notice the end
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		configure(fd, attrConfig, []byte{commandBind, 0, 0, unix.AF_INET}),
		configure(fd, attrParams, []byte{0, 0, copied >> 8, copied & 0xff, copyPacket}),
		configure(fd, attrLength, binary.BigEndian.AppendUint32(nil, length)))
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind a queue: %w", err)
	}
	return fd, nil
}

// configure sends one setting and waits for the kernel's answer.
func configure(fd int, attr uint16, value []byte) error {
	if err := unix.Sendto(fd, message(nil, msgConfig, unix.NLM_F_ACK, attr, value), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	b := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return err
	}
	if n < 20 || binary.NativeEndian.Uint16(b[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel gave no answer")
	}
	if code := int32(binary.NativeEndian.Uint32(b[16:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// message appends a netlink message with one attribute.
func message(b []byte, kind, flags, attr uint16, value []byte) []byte {
	padded := (len(value) + 3) &^ 3
	b = binary.NativeEndian.AppendUint32(b, uint32(16+4+4+padded))
	b = binary.NativeEndian.AppendUint16(b, subsystem|kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)                 // sequence, port
	b = append(b, unix.AF_UNSPEC, 0, number>>8, number&1) // struct nfgenmsg
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, attr)
	b = append(b, value...)
	return append(b, make([]byte, padded-len(value))...)
}

type server struct {
	fd      int
	in, out []byte
	seen    uint64 // bytes looked at
}

// burst is how many verdicts are given with one system call at most.
const burst = 64

// turn waits for a packet, takes what else waits, and accepts all of them.
func (s *server) turn() error {
	s.out = s.out[:0]
	for i := range burst {
		flags := 0
		if i > 0 {
			flags = unix.MSG_DONTWAIT
		}
		n, _, err := unix.Recvfrom(s.fd, s.in, flags)
		if err == unix.EAGAIN || err == unix.EINTR {
			break
		}
		if err != nil {
			return fmt.Errorf("read the queue: %w", err)
		}
		s.look(s.in[:n])
	}
	if len(s.out) == 0 {
		return nil
	}
	if err := unix.Sendto(s.fd, s.out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("give verdicts: %w", err)
	}
	return nil
}

// look reads one message from the queue and appends the verdict.
func (s *server) look(b []byte) {
	if len(b) < 20 || binary.NativeEndian.Uint16(b[4:]) != subsystem|msgPacket {
		return
	}
	s.seen += uint64(len(b))
	for a := b[20:]; len(a) >= 4; {
		size := int(binary.NativeEndian.Uint16(a))
		if size < 4 || size > len(a) {
			return
		}
		if binary.NativeEndian.Uint16(a[2:])&0x3fff == attrHeader && size >= 8 {
			verdict := append([]byte{0, 0, 0, accept}, a[4:8]...)
			s.out = message(s.out, msgVerdict, 0, attrVerdict, verdict)
			return
		}
		a = a[min((size+3)&^3, len(a)):]
	}
}
