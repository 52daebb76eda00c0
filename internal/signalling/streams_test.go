package signalling

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath/signal/gist"
)

// streamPair are two machines on loopback: a connects to b, which takes connections.
type streamPair struct {
	a, b         *Streams
	at           netip.AddrPort
	atA, atB     chan gist.Packet
	failed, over atomic.Int64 // of a, of b
}

// newStreamPair is two, of which b waits so long within a message and for one.
func newStreamPair(t *testing.T, patience, hold time.Duration) *streamPair {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &streamPair{at: l.Addr().(*net.TCPAddr).AddrPort(), atA: make(chan gist.Packet, 4096), atB: make(chan gist.Packet, 4096)}
	p.b = NewStreams(t.Context(), StreamsConfig{Listener: l, Take: func(m gist.Packet) { p.atB <- m },
		Ended: func(netip.AddrPort, bool) { p.over.Add(1) }, Patience: patience, Hold: hold})
	p.a = NewStreams(t.Context(), StreamsConfig{Take: func(m gist.Packet) { p.atA <- m }, Ended: func(_ netip.AddrPort, failed bool) {
		if failed {
			p.failed.Add(1)
		}
	}})
	t.Cleanup(func() { p.a.Wait(); p.b.Wait() })
	return p
}

func next(t *testing.T, from chan gist.Packet) gist.Packet {
	t.Helper()
	select {
	case p := <-from:
		return p
	case <-time.After(time.Minute):
		t.Fatal("no message comes")
		return gist.Packet{}
	}
}

// message is one of so many octets, each its number.
func message(number byte, octets int) []byte {
	b := bytes.Repeat([]byte{number}, octets)
	copy(b, []byte{gist.Version, 1, byte((octets - 8) / 4 >> 8), byte((octets - 8) / 4)})
	return b
}

// eventually waits until something holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 6000 {
		if holds() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error(what)
}

func (s *Streams) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// TestStreams: messages come whole and in order by one connection, answers by the same, and
// where none can be made the machine is told.
func TestStreams(t *testing.T) {
	p := newStreamPair(t, time.Minute, time.Minute)
	own := netip.MustParseAddr("127.0.0.1")
	for i := range byte(3) {
		p.a.Send(&gist.Datagram{To: p.at, From: own, Payload: message(i, 16_000), Stream: true, Dial: true})
	}
	var from netip.AddrPort
	for i := range byte(3) {
		m := next(t, p.atB)
		if !bytes.Equal(m.Payload, message(i, 16_000)) || !m.Stream || m.From.Addr() != own || m.To != p.at {
			t.Fatalf("message %d comes as %d octets from %s", i, len(m.Payload), m.From)
		}
		from = m.From
	}
	p.b.Send(&gist.Datagram{To: from, Payload: message(9, 64), Stream: true})
	if m := next(t, p.atA); !bytes.Equal(m.Payload, message(9, 64)) || m.From != p.at {
		t.Errorf("the answer comes as %+v", m)
	}
	if p.a.count() != 1 || p.b.count() != 1 {
		t.Errorf("%d and %d connections", p.a.count(), p.b.count())
	}
	p.b.End(from)
	eventually(t, "a connection outlives its end", func() bool { return p.a.count()+p.b.count() == 0 })
	p.b.Send(&gist.Datagram{To: from, Payload: message(9, 64), Stream: true}) // nobody is there
	p.a.Send(&gist.Datagram{To: netip.MustParseAddrPort("127.0.0.1:1"), From: own, Payload: message(1, 8), Stream: true, Dial: true})
	eventually(t, "nobody says that there is no connection", func() bool { return p.failed.Load() == 1 })
}

// TestBadPeers: who is silent, stops within a message, sends what is no message or one too
// long, or takes nothing, loses the connection; of one address there are but some.
func TestBadPeers(t *testing.T) {
	p := newStreamPair(t, 200*time.Millisecond, 300*time.Millisecond)
	dial := func() *net.TCPConn {
		c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(p.at))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for what, sent := range map[string][]byte{
		"silent": nil, "within the header": {gist.Version, 1}, "within the message": message(1, 100)[:50],
		"silent after a message": message(1, 16), "another version": {9, 1, 0, 0, 0, 0, 0, 0}, "too long": {gist.Version, 1, 0xff, 0xff, 0, 0, 0, 0},
	} {
		c := dial()
		began := time.Now()
		if _, err := c.Write(sent); err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); os.IsTimeout(err) {
			t.Errorf("%s: the connection stays for %s", what, time.Since(began))
		}
	}
	eventually(t, "connections stay", func() bool { return p.b.count() == 0 })
	p = newStreamPair(t, time.Second, time.Second) // nobody is slower
	all := make([]*net.TCPConn, 3*streamsOfOne)
	for i := range all {
		all[i] = dial()
	}
	eventually(t, "connections of one address are refused", func() bool { return p.b.count() == streamsOfOne })
	if p.b.count() > streamsOfOne {
		t.Errorf("%d connections of one address", p.b.count())
	}
	eventually(t, "connections stay", func() bool { return p.b.count() == 0 })
	c := dial()
	if _, err := c.Write(message(1, 16)); err != nil {
		t.Fatal(err)
	}
	var from netip.AddrPort
	for from.Port() != c.LocalAddr().(*net.TCPAddr).AddrPort().Port() {
		from = next(t, p.atB).From
	}
	for range 1000 { // it reads nothing
		p.b.Send(&gist.Datagram{To: from, Payload: message(1, 16_000), Stream: true})
	}
	eventually(t, "a peer that takes nothing stays", func() bool { return p.b.count() == 0 })
}

// TestRoom: where there are too many connections, the network that has most loses one, and
// nobody else does.
func TestRoom(t *testing.T) {
	s := NewStreams(t.Context(), StreamsConfig{Ended: func(netip.AddrPort, bool) {}})
	key := func(network, port int) streamKey {
		return streamKey{remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(network >> 8), byte(network)}), uint16(port))}
	}
	for i := range maxStreams / streamsOfOne {
		for j := range streamsOfOne {
			if s.add(key(i, 1+j), nil) == nil {
				t.Fatalf("connection %d of network %d is refused", j, i)
			}
		}
	}
	if s.add(key(1, 99), nil) != nil {
		t.Error("one address has more than it may")
	}
	for i := range 3 * maxStreams { // each a new address
		if s.add(key(1000+i, 1), nil) == nil && i < maxStreams-maxStreams/streamsOfOne {
			t.Fatalf("the %dth address has no room beside those with many", i)
		}
	}
	if n := s.count(); n != maxStreams {
		t.Errorf("%d connections", n)
	}
	for i := range maxStreams / streamsOfOne {
		if !slices.ContainsFunc(mapKeys(s.open), func(k streamKey) bool { return k.remote.Addr() == key(i, 0).remote.Addr() }) {
			t.Errorf("network %d has lost all", i)
		}
	}
}

// TestDialledRoom: a network that had this machine open all the connections that it may loses one
// when another needs one.
func TestDialledRoom(t *testing.T) {
	s := NewStreams(t.Context(), StreamsConfig{Ended: func(netip.AddrPort, bool) {}})
	key := func(network string, port int) streamKey {
		return streamKey{netip.AddrPortFrom(netip.MustParseAddr(network), uint16(port)), true}
	}
	for i := range maxStreams {
		if s.add(key("2001:db8::1", 1+i), nil) == nil {
			t.Fatalf("connection %d is not opened", i)
		}
	}
	if s.add(key("2001:db8:0:1::1", 1), nil) == nil {
		t.Error("one network keeps all others out")
	}
	if s.add(key("2001:db8::1", 9999), nil) != nil || s.count() != maxStreams {
		t.Errorf("%d connections", s.count())
	}
}

func mapKeys(m map[streamKey]*stream) (list []streamKey) {
	for k := range m {
		list = append(list, k)
	}
	return list
}

// TestNodes: keys are kept in the file that others read, and a file that is none is refused.
func TestNodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a", "nodes")
	key, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	n, err := OpenNodes(file)
	if err != nil {
		t.Fatal(err)
	}
	n.Learn("gw1", key)
	n.Learn("gw1", key)
	n.Learn("a name\nof lines", key)
	if fresh, err := n.Save(); err != nil || len(fresh) != 1 {
		t.Fatalf("%q, %v", fresh, err)
	}
	b, _ := os.ReadFile(file)
	if err := os.WriteFile(file, append([]byte("# mine\n\ngw2 "+string(bytes.TrimPrefix(b, []byte("gw1 ")))), b...), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err = OpenNodes(file); err != nil || len(n.Known("gw1")) != 1 || len(n.Known("gw2")) != 1 || n.Known("gw3") != nil {
		t.Fatalf("%+v, %v", n, err)
	}
	n.Learn("gw3", other)
	if _, err := n.Save(); err != nil {
		t.Fatal(err)
	}
	if n, err = OpenNodes(file); err != nil || len(n.keys) != 3 || !bytes.Equal(n.Known("gw3")[0], other) {
		t.Errorf("%+v, %v", n, err)
	}
	for _, bad := range []string{"gw1\n", "gw1 AAAA\n", "gw1 " + string(bytes.TrimSpace(b[4:])) + " more\n"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenNodes(file); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
