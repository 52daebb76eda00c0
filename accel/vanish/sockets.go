package vanish

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/tcp.h and linux/sockios.h.
const (
	repairOn         = 1
	repairOffNoProbe = -1
	receiveQueue     = 1
	sendQueue        = 2

	unsentBytes = 0x894B // SIOCOUTQNSD

	optTimestamps = 1
	optSACK       = 2
	optECN        = 8

	established = 1
)

// finReceived are states in which the other end has sent FIN.
var finReceived = map[uint8]bool{7: true, 8: true, 9: true, 11: true} // closed, close-wait, last-ack, closing

// Traits are what a connection has agreed on with its end.
type Traits struct {
	Timestamps, SACK, ECN bool
	SendScale, TakeScale  uint8 // of windows: the end's, and the relay's own
	SendMSS, TakeMSS      int   // the largest segments sent, and announced
}

// info reads what the kernel knows of a connection.
func info(fd int) (t Traits, state uint8, err error) {
	is, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return t, 0, fmt.Errorf("read a connection's state: %w", err)
	}
	// A byte of two bit fields, which the Go structure leaves out: behind Options.
	scales := *(*byte)(unsafe.Add(unsafe.Pointer(&is.Options), 1))
	return Traits{
		Timestamps: is.Options&optTimestamps != 0, SACK: is.Options&optSACK != 0, ECN: is.Options&optECN != 0,
		SendScale: scales & 15, TakeScale: scales >> 4, SendMSS: int(is.Snd_mss), TakeMSS: int(is.Advmss),
	}, is.State, nil
}

// repaired runs a function while a socket is in repair mode. Nobody may read or write it meanwhile.
func repaired(fd int, do func() error) error {
	shared, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOn)
	}
	if err != nil {
		return fmt.Errorf("read a connection's numbers: %w", err)
	}
	err = do()
	// The end of repair mode takes SO_REUSEADDR away.
	return errors.Join(err, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOffNoProbe),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, shared))
}

// queueNumber is the number behind the last byte of a queue.
func queueNumber(fd, queue int) (uint32, error) {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue); err != nil {
		return 0, err
	}
	n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
	return uint32(n), err
}

// taken is the number behind the last byte that a socket has acknowledged, and behind the last one
// that was read from it.
func taken(fd int) (received, read uint32, err error) {
	err = repaired(fd, func() error {
		for {
			before, err := queueNumber(fd, receiveQueue)
			if err != nil {
				return err
			}
			waiting, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
			if err != nil {
				return err
			}
			if received, err = queueNumber(fd, receiveQueue); err != nil {
				return err
			}
			if read = received - uint32(waiting); before == received {
				return nil
			}
		}
	})
	return received, read, err
}

var errUnsent = errors.New("the connection has bytes that it has not sent yet")

// written is the number behind the last byte that was written to a socket. In repair mode the
// kernel takes bytes for sent that are not, so there must be none.
func written(fd int) (n uint32, err error) {
	if unsent, err := unix.IoctlGetInt(fd, unsentBytes); err != nil || unsent > 0 {
		return 0, errors.Join(err, errUnsent)
	}
	err = repaired(fd, func() (err error) {
		n, err = queueNumber(fd, sendQueue)
		return err
	})
	return n, err
}

// clockOf is the time that a socket would stamp a segment with.
func clockOf(fd int) (uint32, error) {
	n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_TIMESTAMP)
	return uint32(n), err
}

// empty reports whether a socket holds nothing that it owes to anybody.
func empty(fd int) bool {
	in, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	if err != nil || in > 0 {
		return false
	}
	out, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return err == nil && out == 0
}

// silence has a socket close without FIN or RST.
func silence(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOn)
}

// hurry has a socket take no more bytes to send than it can send soon, and announce no window for more
// than it takes in a round trip.
func hurry(fd, queue int) error {
	is, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return err
	}
	window := queue + int(is.Rcv_space)
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, queue/2),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_WINDOW_CLAMP, window))
}

// waiting is how many bytes a socket has that are not sent, or not read, yet.
func waiting(fd int) int {
	in, _ := unix.IoctlGetInt(fd, unix.SIOCINQ) // of a closed one, none
	out, _ := unix.IoctlGetInt(fd, unsentBytes)
	return max(in, 0) + max(out, 0)
}
