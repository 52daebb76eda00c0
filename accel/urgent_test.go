package accel

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inline has urgent bytes come in their place among the others.
func inline(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = control(raw, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	}
	if err != nil {
		t.Error(err)
	}
}

// sendUrgent sends bytes the last of which is urgent.
func sendUrgent(c *net.TCPConn, b []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	for len(b) > 0 && err == nil {
		waited := raw.Write(func(fd uintptr) bool {
			var n int
			if n, err = unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_OOB|unix.MSG_NOSIGNAL); err == nil {
				b = b[n:]
			}
			return err != unix.EAGAIN
		})
		if waited != nil {
			return waited
		}
	}
	return err
}

// part is bytes of a stream; the last one may be urgent.
type part struct {
	size   int
	urgent bool
	rest   time.Duration // before the next part
}

// TestUrgent: urgent data ends no stream early, and no byte of it is lost, wherever it stands,
// in both directions.
func TestUrgent(t *testing.T) {
	_, leg := local(t)
	echo := listening(t, func(c *net.TCPConn) {
		defer c.Close()
		inline(t, c)
		_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // not by splice(2)
	})
	// back answers with urgent data to whatever it is asked for.
	parts := make(chan []part, 1)
	back := listening(t, func(c *net.TCPConn) {
		defer c.Close()
		b, _ := io.ReadAll(c)
		if err := sendParts(c, b, <-parts); err != nil {
			t.Error(err)
		}
	})
	const pause = 5 * time.Millisecond
	var cases [][]part
	for _, n := range []int{0, 1, 3, 1000, 1460, 70_000, 600_000} {
		cases = append(cases,
			[]part{{n, false, 0}, {1, true, 0}, {n, false, 0}},     // in the middle
			[]part{{n, false, 0}, {1, true, pause}, {n, false, 0}}, // and a pause behind it
			[]part{{n, false, pause}, {1, true, 0}},                // at the end, before the FIN
			[]part{{n, false, 0}, {1, true, 0}, {1, true, pause}, {1, false, 0}, {n, false, 0}, {1, true, pause}},
		)
		if n > 0 {
			cases = append(cases, []part{{n, true, 0}, {n, true, 0}}) // the last byte of many
		}
	}
	run := func(t *testing.T, to netip.AddrPort, send func(c *net.TCPConn, b []byte) error, parts []part) {
		size := 0
		for _, p := range parts {
			size += p.size
		}
		sent := make([]byte, size)
		_, _ = rand.Read(sent)
		c := leg(to)
		inline(t, c)
		failed := make(chan error, 1)
		go func() { failed <- send(c, sent) }()
		got, err := io.ReadAll(c)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes of %d came back: %v", len(got), len(sent), err)
		}
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	for i, list := range cases {
		t.Run(fmt.Sprintf("there/%d", i), func(t *testing.T) {
			run(t, echo, func(c *net.TCPConn, b []byte) error {
				if err := sendParts(c, b, list); err != nil {
					return err
				}
				return c.CloseWrite()
			}, list)
		})
		t.Run(fmt.Sprintf("back/%d", i), func(t *testing.T) {
			parts <- list
			run(t, back, func(c *net.TCPConn, b []byte) error {
				_, err := c.Write(b)
				_ = c.CloseWrite()
				return err
			}, list)
		})
	}
}

func sendParts(c *net.TCPConn, b []byte, list []part) error {
	for _, p := range list {
		var err error
		if p.urgent {
			err = sendUrgent(c, b[:p.size])
		} else {
			_, err = c.Write(b[:p.size])
		}
		if err != nil {
			return err
		}
		b = b[p.size:]
		time.Sleep(p.rest)
	}
	return nil
}

// TestUrgentStaysUrgent: who takes urgent data aside finds it aside behind a relay too, and the
// stream without it.
func TestUrgentStaysUrgent(t *testing.T) {
	_, leg := local(t)
	aside, stream := make(chan byte, 1), make(chan []byte, 1)
	c := leg(listening(t, func(c *net.TCPConn) {
		defer c.Close()
		b := make([]byte, 3)
		_, _ = io.ReadFull(c, b)
		var urgent [1]byte
		raw, _ := c.SyscallConn()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			n := 0
			_ = control(raw, func(fd int) (err error) {
				n, _, err = unix.Recvfrom(fd, urgent[:], unix.MSG_OOB|unix.MSG_DONTWAIT)
				return err
			})
			if n == 1 {
				break
			}
		}
		aside <- urgent[0]
		rest, _ := io.ReadAll(c)
		stream <- append(b, rest...)
	}))
	_, _ = c.Write([]byte("one"))
	if err := sendUrgent(c, []byte("!")); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("two"))
	_ = c.CloseWrite()
	if u, s := <-aside, <-stream; u != '!' || string(s) != "onetwo" {
		t.Errorf("aside came %q, and the stream %q", u, s)
	}
}

// TestWithoutPipes: where no file is left for a pipe, transfers go on.
func TestWithoutPipes(t *testing.T) {
	r, leg := local(t)
	r.pipes.make = func() (pipe, error) { return pipe{}, os.NewSyscallError("pipe2", unix.EMFILE) }
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	c := leg(listening(t, func(c *net.TCPConn) { defer c.Close(); _, _ = io.Copy(c, c) }))
	go func() { _, _ = c.Write(sent); _ = c.CloseWrite() }()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(sent), err)
	}
}
