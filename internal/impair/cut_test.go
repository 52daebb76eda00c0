package impair_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/impair"
)

// datagram is a packet of UDP, with that many words of IPv4 options.
func datagram(src, dst netip.Addr, port uint16, options int) []byte {
	udp := binary.BigEndian.AppendUint16([]byte{0x30, 0x39}, port)
	udp = append(udp, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)
	if src.Is4() {
		head := make([]byte, 20+4*options)
		head[0], head[3], head[8], head[9] = 0x45+byte(options), byte(len(head)+len(udp)), 64, unix.IPPROTO_UDP
		copy(head[12:], src.AsSlice())
		copy(head[16:], dst.AsSlice())
		return append(head, udp...)
	}
	head := make([]byte, 40)
	head[0], head[5], head[6], head[7] = 0x60, byte(len(udp)), unix.IPPROTO_UDP, 64
	copy(head[8:], src.AsSlice())
	copy(head[24:], dst.AsSlice())
	return append(head, udp...)
}

// TestCut: only datagrams to the port are lost, where a peer is named only those from it
// or to it; all pass when the time is over.
func TestCut(t *testing.T) {
	const port = 4797
	near, far, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.200"), netip.MustParseAddr("203.0.113.201")
	near6, far6, other6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fdff:ffff::2"), netip.MustParseAddr("fdff:ffff::3")
	tcp := datagram(near, far, port, 0)
	tcp[9] = unix.IPPROTO_TCP
	later := datagram(near, far, port, 0)
	later[7] = 1 // eight bytes on
	packets := map[string][]byte{
		"to the peer": datagram(near, far, port, 0), "to another": datagram(near, other, port, 0), "from the peer": datagram(far, near, port, 0),
		"with options": datagram(near, far, port, 2), "to another port": datagram(near, far, port+1, 0), "no UDP": tcp, "a later fragment": later,
		"to the peer, v6": datagram(near6, far6, port, 0), "to another, v6": datagram(near6, other6, port, 0), "from the peer, v6": datagram(far6, near6, port, 0),
		"to another port, v6": datagram(near6, far6, port+1, 0),
	}
	withCable(t, func(wire *cable) error {
		pass := func(what string, lost []string) {
			for name, p := range packets {
				want := 5
				if slices.Contains(lost, name) {
					want = 0
				}
				if n := wire.carries(t, map[byte]uint16{4: unix.ETH_P_IP, 6: unix.ETH_P_IPV6}[p[0]>>4], p, 5); n != want {
					t.Errorf("%s: %d of 5 packets %q passed, must be %d", what, n, name, want)
				}
			}
		}
		for _, c := range []struct {
			way  impair.Way
			peer netip.Addr
			lost []string
		}{
			{impair.Sent, netip.Addr{}, []string{"to the peer", "to another", "from the peer", "with options", "to the peer, v6", "to another, v6", "from the peer, v6"}},
			{impair.Received, netip.Addr{}, []string{"to the peer", "to another", "from the peer", "with options", "to the peer, v6", "to another, v6", "from the peer, v6"}},
			{impair.Sent, far, []string{"to the peer", "with options"}},
			{impair.Received, far, []string{"from the peer"}},
			{impair.Sent, far6, []string{"to the peer, v6"}},
			{impair.Received, far6, []string{"from the peer, v6"}},
		} {
			device := map[impair.Way]string{impair.Sent: "a", impair.Received: "b"}[c.way]
			what := fmt.Sprintf("%s cut for peer %s", device, c.peer)
			of := impair.Datagrams{To: port, Peer: c.peer}
			if err := impair.Cut(device, c.way, of, time.Minute); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			pass(what, c.lost)
			const short = 100 * time.Millisecond
			if err := impair.Cut(device, c.way, of, short); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			time.Sleep(short + 10*time.Millisecond)
			pass(what+", when it was over", nil)
			if err := impair.Cut(device, c.way, of, time.Minute); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			if err := impair.Clear(device); err != nil {
				return err
			}
			pass(what+", cleared", nil)
		}
		return nil
	})
}
