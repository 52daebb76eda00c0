package engine_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/internal/funcbuild"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/packet"
)

// TestTrialIsThePath: what a module makes of packets when it is run by itself is what comes
// out of the engine for the same packets.
func TestTrialIsThePath(t *testing.T) {
	code, err := funcbuild.Compile(t.Context(), "../datapath/ebpf/testdata/replay/told.c", funcbuild.ToWasm)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := newTestbed(t)
	m := onpath.WasmModule{Name: "told", Code: code}
	if err := s.set(m); err != nil {
		t.Fatal(err)
	}
	trial, err := engine.NewTrial(t.Context(), m, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer trial.Close()
	raw := s.raw()
	seed, compared := uint64(time.Now().UnixNano()), 0
	var firsts packet.Fragments
	for i, r := range append(fragments(), datapathtest.Record(seed, 200)...) {
		p := engine.TrialPacket{IP: r.Packet, Reverse: r.Device == "up1"}
		h := packet.Parse(r.Packet)
		if h.Verdict == packet.Malformed || h.SourceRouted || len(r.Packet) > 1400 {
			continue // the host answers those that are source-routed, and so would disturb
		}
		if firsts.Join(&h, 0); !h.Whole() && h.Verdict == packet.Fine {
			p.First = h.Tuple
		}
		want, err := trial.Run(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		got := s.through(raw, r.Packet, p.Reverse)
		if compared++; !bytes.Equal(got, want.Packet) && !bytes.HasPrefix(got, want.Packet) {
			t.Fatalf("seed %d, packet %d, reverse %t: the engine makes of\n  %x\n  %x, the trial\n  %x", seed, i+1, p.Reverse, r.Packet, got, want.Packet)
		}
	}
	have, want := s.status().Modules[0].Counters, map[string]uint64{}
	if want, err = trial.Counters(t.Context()); err != nil || compared < 50 {
		t.Fatalf("%d packets, %v", compared, err)
	}
	for name, n := range want {
		if have[name] != n {
			t.Errorf("seed %d: the engine counts %d as %s, the trial %d", seed, have[name], name, n)
		}
	}
}

// fragments are the two of a datagram.
func fragments() (list []datapathtest.Recorded) {
	for _, at := range []uint16{0x2000, 2} {
		b := packet.Blank(false, packet.UDP, 16, netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("10.9.0.9"))
		copy(b[20:], []byte{0x12, 0x34, 0, 53, 0, 32})
		b[4], b[6], b[7] = 77, byte(at>>8), byte(at)
		b[10], b[11] = 0, 0
		sum := ^packet.Sum(0, b[:20])
		b[10], b[11] = byte(sum>>8), byte(sum)
		list = append(list, datapathtest.Recorded{Device: "up0", Packet: b})
	}
	return list
}

// raw is a socket at the host's device.
func (s *testbed) raw() (fd int) {
	s.t.Helper()
	if err := netnsrun.Do(s.near, func() error {
		l, err := net.InterfaceByName("v0")
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(all)); err != nil {
			return err
		}
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Index}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 3}))
	}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// through sends a packet of the chain into the engine, and gives what comes out.
func (s *testbed) through(fd int, ip []byte, reverse bool) []byte {
	s.t.Helper()
	g := onpath.GroupOf(1, 0, reverse)
	frame := append(append([]byte(nil), engineMAC...), 0x02, 0x6f, onpath.ChainMACByte, byte(g>>16), byte(g>>8), byte(g), 8, 0)
	if ip[0]>>4 == 6 {
		frame[12], frame[13] = 0x86, 0xdd
	}
	if _, err := unix.Write(fd, append(frame, ip...)); err != nil {
		s.t.Fatal(err)
	}
	b := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			s.t.Fatalf("nothing came out for %x: %v", ip, err)
		}
		if n > 14 && bytes.Equal(b[6:12], engineMAC) && bytes.Equal(b[:6], hostMAC) {
			return b[14:n]
		}
	}
}
