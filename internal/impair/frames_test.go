package impair_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// cable is a veth pair a and b in a namespace; frames go from a to b.
type cable struct {
	out int
	in  map[uint16]int // by protocol: all frames at once are seen before any are lost
	to  unix.SockaddrLinklayer
}

// experiment is an EtherType for experiments.
const experiment = 0x88b5

// withCable calls do in a namespace with a cable.
func withCable(t *testing.T, do func(c *cable) error) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	ns := filepath.Join(t.TempDir(), "ns")
	if err := netnsrun.Create(ns); err != nil {
		t.Fatal(err)
	}
	defer netnsrun.Remove(ns)
	err := netnsrun.Do(ns, func() error {
		c, err := newCable()
		if err != nil {
			return err
		}
		defer c.close()
		return do(c)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// newCable makes one in the calling thread's namespace.
func newCable() (*cable, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "a"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "b"}); err != nil {
		return nil, err
	}
	index := map[string]int{}
	for _, d := range []string{"a", "b"} {
		l, err := netlink.LinkByName(d)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return nil, err
		}
		index[d] = l.Attrs().Index
	}
	out, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	c := &cable{out: out, in: map[uint16]int{}, to: unix.SockaddrLinklayer{Ifindex: index["a"]}}
	for _, kind := range []uint16{experiment, unix.ETH_P_IP, unix.ETH_P_IPV6} {
		in, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			c.in[kind] = in
			err = unix.Bind(in, &unix.SockaddrLinklayer{Ifindex: index["b"], Protocol: kind<<8 | kind>>8})
		}
		if err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

func (c *cable) close() {
	unix.Close(c.out)
	for _, in := range c.in {
		unix.Close(in)
	}
}

// through sends n frames of an unused protocol and counts those that came.
func (c *cable) through(t *testing.T, n int) int {
	t.Helper()
	return c.carries(t, experiment, make([]byte, 46), n)
}

// carries sends others. Whatever else comes is not counted.
func (c *cable) carries(t *testing.T, kind uint16, packet []byte, n int) (got int) {
	t.Helper()
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, byte(kind >> 8), byte(kind)}, packet...)
	b := make([]byte, 2048)
	for range n {
		if err := unix.Sendto(c.out, frame, 0, &c.to); err != nil && err != unix.ENOBUFS {
			t.Error(fmt.Errorf("send: %w", err))
			return -1
		}
		for {
			size, _, err := unix.Recvfrom(c.in[kind], b, 0)
			if err != nil {
				break
			}
			if bytes.Equal(b[:size], frame) {
				got++
			}
		}
	}
	return got
}
