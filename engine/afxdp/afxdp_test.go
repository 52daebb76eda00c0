package afxdp_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/onpath/onpath/engine/afxdp"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/offload"
)

// pair makes two namespaces, connected; the first has 10.9.0.1, and the second's
// stack 10.9.0.2. All of 10.9.0.0/24 is at the second's device.
func pair(t *testing.T) (near, far string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	near, far = filepath.Join(t.TempDir(), "near"), filepath.Join(t.TempDir(), "far")
	for _, ns := range []string{near, far} {
		if err := netnsrun.Create(ns); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netnsrun.Remove(ns) })
	}
	there, err := netns.GetFromPath(far)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 2}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netnsrun.Do(near, func() error {
		a := netlink.NewLinkAttrs()
		a.Name = "v0"
		veth := &netlink.Veth{LinkAttrs: a, PeerName: "v1", PeerHardwareAddr: mac, PeerNamespace: netlink.NsFd(int(there))}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		if err := offload.Disable("v0", offload.CompleteFrames); err != nil {
			return err
		}
		return up("v0", "10.9.0.1/24", "10.9.0.3", mac)
	}))
	must(netnsrun.Do(far, func() error { return up("v1", "10.9.0.2/24", "", nil) }))
	must(netnsrun.Do(near, func() error { return operational("v0") }))
	must(netnsrun.Do(far, func() error { return operational("v1") }))
	return near, far
}

// operational waits until the kernel has heard that a link has its carrier: until then it
// drops what is sent there, without an error.
func operational(name string) error {
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("%s is %s after ten seconds", name, l.Attrs().OperState)
		}
	}
}

func up(name, address, neighbour string, mac net.HardwareAddr) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	addr, _ := netlink.ParseAddr(address)
	if err := netlink.AddrAdd(l, addr); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	if mac == nil {
		return nil
	}
	return netlink.NeighSet(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(neighbour), HardwareAddr: mac,
	})
}

// TestEcho: what is for the stack's address is answered by the stack, all else comes
// by the socket and can be sent back from where it lies.
func TestEcho(t *testing.T) {
	near, far := pair(t)
	var s *afxdp.Socket
	var stack *net.UDPConn
	err := netnsrun.Do(far, func() error {
		f, err := afxdp.Open(afxdp.Config{Device: "v1", Frames: 256, Stack: afxdp.Stack{
			Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.2")}, Ports: []afxdp.Port{{Protocol: 6, Number: 80}}}})
		if err != nil {
			return err
		}
		if s, err = afxdp.Map(f); err != nil {
			return err
		}
		stack, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 7})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stack.Close()
	var conn *net.UDPConn
	if err := netnsrun.Do(near, func() error {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 1)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		reflect(s, stop)
	}()
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := stack.ReadFromUDP(b)
			if err != nil {
				return
			}
			_, _ = stack.WriteToUDP(append([]byte("stack "), b[:n]...), from)
		}
	}()
	got := make([]byte, 2048)
	for i := range 2000 { // more than there are frames
		for to, prefix := range map[string]string{"10.9.0.3": "", "10.9.0.2": "stack "} {
			text := fmt.Appendf(nil, "%s%d", bytes.Repeat([]byte("x"), i%1400), i)
			if _, err := conn.WriteToUDP(text, &net.UDPAddr{IP: net.ParseIP(to), Port: 7}); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			n, from, err := conn.ReadFromUDP(got)
			if err != nil || string(got[:n]) != prefix+string(text) || from.IP.String() != to {
				t.Fatalf("packet %d to %s: %d bytes from %v: %v", i, to, n, from, err)
			}
		}
	}
	close(stop)
	<-stopped
	if s.Received != 2000 || s.Sent != 2000 || s.SendFailed != 0 {
		t.Errorf("received %d, sent %d, failed %d", s.Received, s.Sent, s.SendFailed)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestKeptFrames: after a backlog there are frames for what is sent anew, while those that
// came are still held; once these are back, as many receive as before.
func TestKeptFrames(t *testing.T) {
	near, far := pair(t)
	const frames = 256
	var s *afxdp.Socket
	var conn net.Conn
	err := netnsrun.Do(far, func() error {
		f, err := afxdp.Open(afxdp.Config{Device: "v1", Frames: frames})
		if err != nil {
			return err
		}
		s, err = afxdp.Map(f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := netnsrun.Do(near, func() error { conn, err = net.Dial("udp4", "10.9.0.3:7"); return err }); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	held := make([]afxdp.Frame, frames)
	for round := range 3 {
		got := 0
		for until := time.Now().Add(time.Minute); got < frames/8*7 && time.Now().Before(until); {
			if _, err := conn.Write([]byte("backlog")); err != nil {
				t.Fatal(err)
			}
			got += s.Receive(held[got:])
		}
		if got < frames/8*7 {
			t.Fatalf("round %d: %d frames came, of %d", round, got, frames/8*7)
		}
		var made []afxdp.Frame
		for f, ok := s.New(); ok; f, ok = s.New() {
			made = append(made, f)
		}
		if len(made) < frames/8-1 {
			t.Errorf("round %d: beside %d frames that came there are %d to send", round, got, len(made))
		}
		for _, f := range append(made, held[:got]...) {
			s.Release(f)
		}
	}
}

// reflect sends each datagram back whence it came.
func reflect(s *afxdp.Socket, stop chan struct{}) {
	frames := make([]afxdp.Frame, 64)
	for {
		n := s.Receive(frames)
		for _, f := range frames[:n] {
			b := s.Bytes(f)
			swap(b[0:6], b[6:12])
			swap(b[26:30], b[30:34])
			swap(b[34:36], b[36:38])
			s.Send(f)
		}
		if n > 0 {
			_ = s.Flush()
			continue
		}
		select {
		case <-stop:
			return
		default:
			time.Sleep(50 * time.Microsecond)
		}
	}
}

func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}
