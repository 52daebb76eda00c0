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
	return framesThrough(t, 0x88b5, make([]byte, 46), n) // 88b5 is for experiments
}

// framesThrough sends others.
func framesThrough(t *testing.T, kind uint16, packet []byte, n int) int {
	t.Helper()
	l, err := netlink.LinkByName("a")
	if err != nil {
		t.Fatal(err)
	}
	protocol := kind<<8 | kind>>8 // as on the wire
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	in, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, int(protocol))
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
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, byte(kind >> 8), byte(kind)}, packet...)
	got := 0
	for range n {
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}); err != nil && err != unix.ENOBUFS {
			t.Fatal(err)
		}
		buf := make([]byte, 200)
		for {
			if _, _, err := unix.Recvfrom(in, buf, 0); err != nil {
				break
			}
			got++
		}
	}
	return got
}
