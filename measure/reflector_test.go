package measure

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReflectorAnswersWithWhatCame: an answer has the request's own number, of each of two
// senders, and the hop limit that the request arrived with (RFC 8762 §4.2, §4.3).
func TestReflectorAnswersWithWhatCame(t *testing.T) {
	for _, at := range []string{"127.0.0.1", "::1"} {
		r, err := NewReflector(netip.AddrPortFrom(netip.MustParseAddr(at), 0), secret)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for _, x := range []struct {
			sequence uint32
			hops     int
		}{{0, 64}, {0, 17}, {41, 200}} {
			c, err := net.DialUDP("udp", nil, r.conn.LocalAddr().(*net.UDPAddr))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			raw, err := c.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if err := raw.Control(func(fd uintptr) {
				level, option := unix.IPPROTO_IP, unix.IP_TTL
				if at == "::1" {
					level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
				}
				if err := unix.SetsockoptInt(int(fd), level, option, x.hops); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(request{sequence: x.sequence, sent: ntp(time.Now())}.encode(requestKey(secret))); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, packetSize)
			if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			n, err := c.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decodeReply(b[:n], replyKey(secret))
			if err != nil {
				t.Fatal(err)
			}
			if got.sequence != x.sequence || got.request.sequence != x.sequence || int(got.request.ttl) != x.hops {
				t.Errorf("%s: request %d with hop limit %d: answer %d, to %d with hop limit %d",
					at, x.sequence, x.hops, got.sequence, got.request.sequence, got.request.ttl)
			}
		}
	}
}
