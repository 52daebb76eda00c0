// Package sockets ends the TCP connections of a network namespace.
package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The messages of sock_diag(7).
const (
	requestSize = 56 // struct inet_diag_req_v2
	messageID   = 4  // offset of the socket's id in struct inet_diag_msg
	requestID   = 8  // and in the request
	idSize      = 48 // struct inet_diag_sockid
)

// connections are the states of include/net/tcp_states.h, without LISTEN and CLOSE.
const connections = 1<<1 | 1<<2 | 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<8 | 1<<9 | 1<<11 | 1<<12

// End ends every TCP connection of the calling thread's network namespace, also those of
// which no program has a socket any more: the kernel goes on sending for them, minutes
// long. Their other ends are sent a RST. It returns how many there were.
func End() (n int, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		found, derr := dump(family)
		err = errors.Join(err, derr)
		for _, id := range found {
			if eerr := end(family, id); eerr != nil {
				err = errors.Join(err, fmt.Errorf("end a connection (the kernel needs INET_DIAG_DESTROY): %w", eerr))
				break // nor the others
			}
			n++
		}
	}
	return n, err
}

// Possible says why the kernel cannot end connections; nil: it can.
func Possible() error {
	return end(unix.AF_INET, make([]byte, idSize))
}

func request(family uint8, states uint32, id []byte) []byte {
	b := make([]byte, requestSize)
	b[0], b[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], states)
	copy(b[requestID:], id)
	return b
}

func dump(family uint8) (ids [][]byte, err error) {
	r := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
	r.AddRawData(request(family, connections, nil))
	messages, err := r.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	for _, m := range messages {
		if len(m) >= messageID+idSize {
			ids = append(ids, m[messageID:messageID+idSize])
		}
	}
	if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
		return ids, fmt.Errorf("list TCP connections: %w", err)
	}
	return ids, nil
}

func end(family uint8, id []byte) error {
	r := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	r.AddRawData(request(family, 0, id))
	if _, err := r.Execute(unix.NETLINK_INET_DIAG, 0); err != nil && !errors.Is(err, syscall.ENOENT) {
		return err
	}
	return nil
}
