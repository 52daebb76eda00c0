package accel

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// Legs that are dialled and those that are taken begin with a wide window, and the low-water
// mark that made it delays no byte. Both find ends that are gone, and let those rest that read nothing.
func TestWideWindow(t *testing.T) {
	l, err := ListenRelays(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled, err := dialRelay(t.Context(), l.Addr().(*net.TCPAddr).AddrPort(), []byte{1}, legOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	taken, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]conn{"dialled": dialled, "taken": taken} {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := control(raw, func(fd int) error {
			room, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
			if err == nil && room < window {
				t.Errorf("the leg that is %s has room for %d bytes, want %d", name, room, window)
			}
			alive, aerr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
			idle, ierr := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
			limit, lerr := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			if limit != 0 {
				t.Errorf("the leg that is %s ends after %d ms at an end that takes nothing", name, limit)
			}
			if err = errors.Join(err, aerr, ierr, lerr); err == nil && (alive != 1 || idle != int(keepAlive.Idle.Seconds())) {
				t.Errorf("the leg that is %s asks after an end that rests (%d) after %d s, want %s", name, alive, idle, keepAlive.Idle)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.ReadFull(taken, make([]byte, 1)); err != nil { // one byte is enough to be woken
		t.Error(err)
	}
}
