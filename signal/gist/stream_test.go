package gist

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

// streams are endpoints that are told of all that others send: datagrams, and messages of
// connections, which are between their addresses.
type streams struct {
	t    *testing.T
	all  map[netip.Addr]*Endpoint
	user netip.Addr // whose packets the one after the sender takes
	next map[netip.Addr]netip.Addr
	out  []Output // what is no message
	long int      // octets by connections
}

func twoByTCP(t *testing.T, port uint16) (s *streams, a, b *Endpoint, k Key) {
	a, b = endpoint(t, "a", "10.0.0.1"), endpoint(t, "b", "10.0.0.2")
	b.config.TCPPort = port
	k = Key{Flow: Toward(addr("10.0.0.1"), addr("10.9.0.2")), Session: SessionID{1}}
	return &streams{t: t, all: map[netip.Addr]*Endpoint{addr("10.0.0.1"): a, addr("10.0.0.2"): b}, user: addr("10.9.0.2"),
		next: map[netip.Addr]netip.Addr{addr("10.0.0.1"): addr("10.0.0.2")}}, a, b, k
}

// clientPort is by which an endpoint that opens a connection does so.
const clientPort = 50_000

func (s *streams) run(now time.Time, from netip.Addr, list []Output) {
	s.t.Helper()
	for _, o := range list {
		if o.Send == nil {
			s.out = append(s.out, o)
			continue
		}
		d, p := o.Send, Packet{From: netip.AddrPortFrom(from, Port), To: o.Send.To, Payload: o.Send.Payload, Stream: o.Send.Stream}
		to := d.To.Addr()
		if d.Stream {
			s.long += len(d.Payload)
			if d.Dial {
				p.From = netip.AddrPortFrom(from, clientPort)
			} else {
				p.From = netip.AddrPortFrom(from, s.all[from].config.TCPPort)
			}
			if StreamLength(d.Payload) != len(d.Payload) {
				s.t.Errorf("a message of %d octets says that it has %d", len(d.Payload), StreamLength(d.Payload))
			}
		} else if to == s.user {
			to = s.next[from]
		}
		if e := s.all[to]; e != nil {
			s.run(now, to, e.Receive(now, p))
		}
	}
}

// TestLongByConnection: what does not fit into a datagram goes by a connection, which the node
// that asks opens, and so does what comes back.
func TestLongByConnection(t *testing.T) {
	s, a, b, k := twoByTCP(t, 4270)
	there, back := bytes.Repeat([]byte("long"), MaxStream/4), bytes.Repeat([]byte("back"), MaxStream/4)
	out, err := a.Down(begin, k, 5, there)
	if err != nil {
		t.Fatal(err)
	}
	s.run(begin, addr("10.0.0.1"), out)
	if len(s.out) != 1 || s.out[0].Deliver == nil || !bytes.Equal(s.out[0].Deliver.Payload, there) || !s.out[0].Deliver.Stream ||
		s.out[0].Deliver.From != addr("10.0.0.1") {
		t.Fatalf("%+v", s.out)
	}
	if peer, ok := a.Next(k); !ok || !peer.Stream || peer.Address.Port() != 4270 || !b.UpStream(k) {
		t.Errorf("next %+v, up by connection: %t", peer, b.UpStream(k))
	}
	s.out = nil
	if out, err = b.Up(begin, k, back); err != nil {
		t.Fatal(err)
	}
	s.run(begin, addr("10.0.0.2"), out)
	if len(s.out) != 1 || s.out[0].Deliver == nil || !bytes.Equal(s.out[0].Deliver.Payload, back) {
		t.Fatalf("%+v", s.out)
	}
	s.out = nil
	if out, err = a.Down(begin, k, 5, []byte("more")); err != nil { // the connection is there
		t.Fatal(err)
	}
	if m, err := ParseStream(out[0].Send.Payload); err != nil || m.Type != Data || m.NLI != nil || !m.Source {
		t.Errorf("%+v, %v", m, err)
	}
	s.run(begin, addr("10.0.0.1"), out)
	if len(s.out) != 1 || string(s.out[0].Deliver.Payload) != "more" {
		t.Errorf("%+v", s.out)
	}
}

// TestShortByDatagram: nothing is proposed for what fits into a datagram, unless it is asked
// for because what comes back is long; and then the request goes again.
func TestShortByDatagram(t *testing.T) {
	s, a, b, k := twoByTCP(t, 4270)
	out, _ := a.Down(begin, k, 5, []byte("request!"))
	s.run(begin, addr("10.0.0.1"), out)
	if s.long != 0 || b.UpStream(k) {
		t.Errorf("%d octets by a connection", s.long)
	}
	if _, err := b.Up(begin, k, make([]byte, MaxMessage)); err != ErrTooLong {
		t.Errorf("a long answer: %v", err)
	}
	out, _ = a.DownStream(begin, k, 5, []byte("request!"))
	s.run(begin, addr("10.0.0.1"), out)
	if s.long == 0 || !b.UpStream(k) || len(s.out) != 2 {
		t.Errorf("%d octets by a connection, up by it: %t, %+v", s.long, b.UpStream(k), s.out)
	}
}

// TestNoConnection: where the next node takes none, or cannot be reached by it, the sender
// learns so, and what is short goes on by datagrams.
func TestNoConnection(t *testing.T) {
	for _, port := range []uint16{0, 4270} {
		s, a, _, k := twoByTCP(t, port)
		if port != 0 {
			s.all[addr("10.0.0.2")].config.TCPPort = port
		}
		var out []Output
		if port == 0 {
			out, _ = a.Down(begin, k, 5, make([]byte, 4000))
			s.run(begin, addr("10.0.0.1"), out)
		} else {
			out, _ = a.Down(begin, k, 5, make([]byte, 4000))
			response := s.all[addr("10.0.0.2")].Receive(begin, packetOf(only(t, out)))
			a.Receive(begin, packetOf(only(t, response)))
			s.out = a.Ended(netip.MustParseAddrPort("10.0.0.2:4270"), true)
		}
		if len(s.out) != 1 || s.out[0].Failed == nil || s.out[0].Failed.Error.Code != codeTooLarge {
			t.Fatalf("port %d: %+v", port, s.out)
		}
		s.out = nil
		out, err := a.Down(begin, k, 5, []byte("request!"))
		if err != nil {
			t.Fatal(err)
		}
		s.run(begin, addr("10.0.0.1"), out)
		if len(s.out) != 1 || s.out[0].Deliver == nil || string(s.out[0].Deliver.Payload) != "request!" {
			t.Errorf("port %d: %+v", port, s.out)
		}
	}
}

// TestForgedConfirm: a connection whose Confirm has another cookie, another proposal or no
// time is ended, and no state is made of what it brings.
func TestForgedConfirm(t *testing.T) {
	for what, change := range map[string]func(*Message){
		"as it is to be":       func(*Message) {},
		"from another machine": func(*Message) {},
		"another cookie":       func(m *Message) { m.ResponderCookie[0] ^= 1 },
		"another address":      func(m *Message) { m.NLI.Address = addr("10.0.0.3") },
		"another proposal":     func(m *Message) { m.StackProposal = []byte{1, 0, 0, 0, 2, 2, 1, 0} },
		"no proposal":          func(m *Message) { m.StackProposal, m.StackConfig = nil, nil },
		"no time":              func(m *Message) { m.StackConfig = nil },
		"a time of nothing":    func(m *Message) { m.StackConfig = make([]byte, 8) },
		"an empty profile":     func(m *Message) { m.StackProposal = []byte{1, 0, 0, 0, 0, 0, 0, 0} },
		"a profile too long":   func(m *Message) { m.StackProposal = []byte{1, 0, 0, 0, 9, 1, 0, 0} },
	} {
		_, a, b, k := twoByTCP(t, 4270)
		out, _ := a.Down(begin, k, 5, make([]byte, 4000))
		response := b.Receive(begin, packetOf(only(t, out)))
		confirm := only(t, a.Receive(begin, packetOf(only(t, response))))
		m, err := ParseStream(confirm.Payload)
		if err != nil {
			t.Fatal(err)
		}
		change(m)
		from := netip.MustParseAddrPort("10.0.0.1:50000")
		if what == "from another machine" {
			from = netip.MustParseAddrPort("10.0.0.3:50000")
		}
		out = b.Receive(begin, Packet{From: from, Payload: m.AppendStream(nil), Stream: true})
		good := len(b.routes) == 1
		if good != (what == "as it is to be") {
			t.Errorf("%s: %d routes, %+v", what, len(b.routes), out)
		}
		if good {
			continue
		}
		refused := false
		for _, o := range out {
			refused = refused || o.End != nil || o.Send != nil && o.Send.Stream && !o.Send.Dial
		}
		if !refused {
			t.Errorf("%s: %+v", what, out)
		}
	}
}

// TestHello: a peer that asks whether the connection is alive hears so (RFC 5971 §5.1), and
// Queries are refused in connections as Hellos are in datagrams (§5.5).
func TestHello(t *testing.T) {
	_, _, b, _ := twoByTCP(t, 4270)
	hello := &Message{Hops: 1, Type: Hello, Reply: true, HelloID: []byte{1, 2, 3, 4}}
	zero := &Message{Hops: 1, Type: Hello, Reply: true, HelloID: make([]byte, 4)}
	from := netip.MustParseAddrPort("10.0.0.1:50000")
	out := b.Receive(begin, Packet{From: from, Payload: hello.AppendStream(nil), Stream: true})
	m, err := ParseStream(only(t, out).Payload)
	if err != nil || m.Type != Hello || m.Reply || binary.BigEndian.Uint32(m.HelloID) != 0x01020304 || m.NSLPID != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	for what, c := range map[string]struct {
		p    Packet
		code uint16
	}{
		"a Hello without a number":   {Packet{From: from, Payload: zero.AppendStream(nil), Stream: true}, codeObjectValue},
		"a Query in a connection":    {Packet{From: from, Payload: foreignQuery(16).AppendStream(nil), Stream: true}, codeEncapsulation},
		"Data of no known neighbour": {Packet{From: from, Payload: stripped(samples()[3]).AppendStream(nil), Stream: true}, codeNoState},
	} {
		m, err := ParseStream(only(t, b.Receive(begin, c.p)).Payload)
		if err != nil || m.Type != ErrorMessage || m.Error.Code != c.code {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
	}
	if _, err := Parse(hello.Append(nil)); err == nil {
		t.Error("a Hello in a datagram is read")
	}
}

// stripped is a message as it is in a connection.
func stripped(m *Message) *Message {
	m.NLI, m.Source = nil, true
	return m
}

// TestPortOfTheProfile: of a peer that takes TCP at one port and TLS over TCP at another, the
// port of TCP alone counts, in whichever order they come.
func TestPortOfTheProfile(t *testing.T) {
	plain, tls := []byte{1, forwardsTCP, 0, 0}, []byte{2, 2, forwardsTCP, 0}
	hold := []byte{0, 0, 0x75, 0x30}
	option := func(profile, flags byte, port byte) []byte {
		return []byte{forwardsTCP, profile, 2, flags, 0, port, 0, 0}
	}
	for what, c := range map[string]struct {
		proposal, options [][]byte
		want              uint16
	}{
		"one":                {[][]byte{plain}, [][]byte{option(1, 0, 10)}, 10},
		"for all profiles":   {[][]byte{tls, plain}, [][]byte{option(0, 0, 10)}, 10},
		"plain first":        {[][]byte{plain, tls}, [][]byte{option(1, 0, 10), option(2, 0, 20)}, 10},
		"TLS first":          {[][]byte{tls, plain}, [][]byte{option(1, 0, 20), option(2, 0, 10)}, 10},
		"TLS alone":          {[][]byte{tls}, [][]byte{option(1, 0, 20)}, 0},
		"not usable":         {[][]byte{plain}, [][]byte{option(1, 0x80, 10)}, 0},
		"of another profile": {[][]byte{plain, tls}, [][]byte{option(2, 0, 20)}, 0},
		"of its own, before": {[][]byte{plain}, [][]byte{option(1, 0, 10), option(0, 0, 30)}, 10},
	} {
		m := &Message{StackProposal: append([]byte{byte(len(c.proposal)), 0, 0, 0}, bytes.Join(c.proposal, nil)...)}
		m.StackConfig = append(append([]byte{byte(len(c.options)), 0, 0, 0}, hold...), bytes.Join(c.options, nil)...)
		if got := m.tcpPort(); got != c.want {
			t.Errorf("%s: port %d, want %d", what, got, c.want)
		}
	}
}
