// Package sockets ends the TCP connections of a network namespace.
package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// The messages of sock_diag(7) and netlink(7).
const (
	headerSize  = unix.SizeofNlMsghdr
	requestSize = 56 // struct inet_diag_req_v2
	messageID   = 4  // offset of the socket's id in struct inet_diag_msg
	requestID   = 8  // and in the request
	idSize      = 48 // struct inet_diag_sockid

	byFamily = 20 // SOCK_DIAG_BY_FAMILY
	destroy  = 21 // SOCK_DESTROY
)

// connections are the states of include/net/tcp_states.h, without LISTEN and CLOSE.
const connections = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<8 | 1<<9 | 1<<11 | 1<<12

// batch is how many requests are sent at once, whose answers fit a socket's buffer.
const batch = 64

// End ends every TCP connection of the calling thread's network namespace, also those of
// which no program has a socket any more: the kernel goes on sending for them, minutes
// long. Their other ends are sent a RST. It returns how many it ended. Possible says
// whether the kernel can do that; where it cannot, End is not to be called.
func End() (n int, err error) {
	var failed error
	err = each(func(s *diag, family uint8, ids [][]byte) {
		for len(ids) > 0 {
			some := ids[:min(batch, len(ids))]
			ids = ids[len(some):]
			ended, err := s.end(family, some)
			n += ended
			if err != nil {
				failed = fmt.Errorf("end a TCP connection: %w", err)
			}
		}
	})
	return n, errors.Join(failed, err)
}

// count is how many connections there are.
func count() (n int, err error) {
	err = each(func(_ *diag, _ uint8, ids [][]byte) {
		n += len(ids)
	})
	return n, err
}

// each lists the connections of each family.
func each(do func(s *diag, family uint8, ids [][]byte)) error {
	s, err := open()
	if err != nil {
		return err
	}
	defer s.close()
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		ids, err := s.dump(family)
		if err != nil {
			return fmt.Errorf("list TCP connections: %w", err)
		}
		do(s, family, ids)
	}
	return nil
}

// diag is a netlink socket for sock_diag.
type diag struct {
	fd  int
	buf []byte
}

func open() (*diag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	return &diag{fd: fd, buf: make([]byte, 1<<16)}, nil
}

func (s *diag) close() { _ = unix.Close(s.fd) }

// request appends one to b.
func request(b []byte, kind, flags uint16, family uint8, states uint32, id []byte) []byte {
	e := binary.NativeEndian
	b = e.AppendUint32(b, headerSize+requestSize)
	b = e.AppendUint16(b, kind)
	b = e.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = append(b, make([]byte, 8+requestSize)...) // sequence number and port are not used
	r := b[len(b)-requestSize:]
	r[0], r[1] = family, unix.IPPROTO_TCP
	e.PutUint32(r[4:], states)
	copy(r[requestID:], id)
	return b
}

// send sends requests and gives what is answered to take, until that is done.
func (s *diag) send(requests []byte, take func(m syscall.NetlinkMessage) (done bool, err error)) error {
	if err := unix.Sendto(s.fd, requests, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(s.buf[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			if done, err := take(m); done || err != nil {
				return err
			}
		}
	}
}

// errorIn is the error that a message of type NLMSG_ERROR or NLMSG_DONE tells, if one.
func errorIn(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(m.Data)); code < 0 {
		return syscall.Errno(-code)
	}
	return nil
}

func (s *diag) dump(family uint8) (ids [][]byte, err error) {
	err = s.send(request(nil, byFamily, unix.NLM_F_DUMP, family, connections, nil), func(m syscall.NetlinkMessage) (bool, error) {
		switch {
		case m.Header.Type == unix.NLMSG_DONE || m.Header.Type == unix.NLMSG_ERROR:
			return true, errorIn(m)
		case len(m.Data) >= messageID+idSize:
			ids = append(ids, append([]byte(nil), m.Data[messageID:messageID+idSize]...))
		}
		return false, nil
	})
	return ids, err
}

// end ends connections, and gives an error of one that it could not.
func (s *diag) end(family uint8, ids [][]byte) (n int, failed error) {
	var b []byte
	for _, id := range ids {
		b = request(b, destroy, unix.NLM_F_ACK, family, 0, id)
	}
	answers := 0
	err := s.send(b, func(m syscall.NetlinkMessage) (bool, error) {
		if m.Header.Type != unix.NLMSG_ERROR {
			return false, nil
		}
		switch err := errorIn(m); {
		case err == nil:
			n++
		case errors.Is(err, syscall.ENOENT): // it has ended by itself
		case errors.Is(err, syscall.EOPNOTSUPP): // TIME_WAIT, on an older kernel: that ends by itself
		default:
			failed = err
		}
		answers++
		return answers == len(ids), nil
	})
	return n, errors.Join(failed, err)
}
