package impair_test

import (
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// through sends n frames of an unused protocol out of a and counts those that b
// received.
func through(t *testing.T, n int) int {
	t.Helper()
	l, err := netlink.LinkByName("a")
	if err != nil {
		t.Fatal(err)
	}
	const protocol = 0xb588 // big endian 88b5, for experiments
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	in, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(in)
	b, err := netlink.LinkByName("b")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(in, &unix.SockaddrLinklayer{Ifindex: b.Attrs().Index, Protocol: protocol}); err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 60)
	for i := range 6 {
		frame[i] = 0xff
	}
	frame[12], frame[13] = 0x88, 0xb5
	got := 0
	for range n {
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}); err != nil && err != unix.ENOBUFS {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		for {
			if _, _, err := unix.Recvfrom(in, buf, 0); err != nil {
				break
			}
			got++
		}
	}
	return got
}
