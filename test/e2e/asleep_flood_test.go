package e2e

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAsleepFlood: a hundred thousand SYNs as fast as they can be sent start a sleeping
// instance once, and it serves afterwards.
func TestAsleepFlood(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set")
	}
	ctx := need(t, 2*time.Minute)
	s := serveTCP(t, echo)
	apply(ctx, t, asleepYAML)
	active(ctx, t, "nap")
	before := strings.Count(testbed.Log("n1"), "reason=Woken")
	began := time.Now()
	in(t, "client", func() error { return flood(100_000) })
	t.Logf("100,000 SYNs took %s", time.Since(began))
	c, err := dialTCP(t, "10.9.0.2", s.port, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if n := strings.Count(testbed.Log("n1"), "reason=Woken") - before; n != 1 {
		t.Errorf("the instance was started %d times", n)
	}
}

// flood sends SYNs from the client to origin, each of another connection. Their sums are
// wrong: origin answers none.
func flood(count int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 40)
	b[0], b[3], b[8], b[9] = 0x45, 40, 64, unix.IPPROTO_TCP
	copy(b[12:], []byte{10, 1, 0, 2})
	copy(b[16:], []byte{10, 9, 0, 2})
	b[32], b[33] = 0x50, 0x02
	to := &unix.SockaddrInet4{Addr: [4]byte{10, 9, 0, 2}}
	for n := range count {
		binary.BigEndian.PutUint16(b[20:], uint16(1024+n%60_000))
		binary.BigEndian.PutUint16(b[22:], uint16(100+n/60_000))
		if err := unix.Sendto(fd, b, 0, to); err != nil && err != unix.ENOBUFS {
			return err
		}
	}
	return nil
}
