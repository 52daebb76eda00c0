package gist

import (
	"bytes"
	"net/netip"
	"testing"
	"time"
)

var begin = time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)

// counted makes octets that differ.
type counted struct{ n byte }

func (c *counted) Read(p []byte) (int, error) {
	for i := range p {
		c.n++
		p[i] = c.n
	}
	return len(p), nil
}

func endpoint(t testing.TB, name, address string) *Endpoint {
	t.Helper()
	e, err := New(Config{Peer: name, Random: &counted{}, Source: func(netip.Addr) netip.Addr { return addr(address) }})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// only is the one datagram among what there is to do.
func only(t testing.TB, list []Output) *Datagram {
	t.Helper()
	if len(list) != 1 || list[0].Send == nil {
		t.Fatalf("%d things to do: %+v", len(list), list)
	}
	return list[0].Send
}

func packetOf(d *Datagram) Packet {
	return Packet{From: netip.AddrPortFrom(d.From, Port), To: d.To, Payload: d.Payload}
}

// TestHandshake: a Query costs a responder nothing but its answer, which is no longer, and
// only the cookie makes state.
func TestHandshake(t *testing.T) {
	for _, ends := range [][3]string{{"10.0.0.1", "10.0.0.2", "10.9.0.2"}, {"2001:db8::1", "2001:db8::2", "2001:db8:9::2"}} {
		a, b := endpoint(t, "a", ends[0]), endpoint(t, "a-node-with-a-name-of-as-many-octets-as-there-may-be-for-a-node1", ends[1])
		k := Key{Flow: Toward(addr(ends[0]), addr(ends[2])), Session: SessionID{1}}
		out, err := a.Down(begin, k, 5, []byte("request!"))
		if err != nil {
			t.Fatal(err)
		}
		query := only(t, out)
		if query.To != netip.AddrPortFrom(addr(ends[2]), Port) {
			t.Errorf("the Query goes to %s", query.To)
		}
		response := only(t, b.Receive(begin, packetOf(query)))
		if len(b.routes) != 0 || len(response.Payload) > len(query.Payload) {
			t.Errorf("a Query of %d octets makes %d routes and an answer of %d", len(query.Payload), len(b.routes), len(response.Payload))
		}
		confirm := only(t, a.Receive(begin.Add(3*time.Millisecond), packetOf(response)))
		for name, change := range map[string]func(*Packet){
			"another address": func(p *Packet) { p.From = netip.AddrPortFrom(p.From.Addr().Next().Next(), Port) },
			"another port":    func(p *Packet) { p.From = netip.AddrPortFrom(p.From.Addr(), 99) },
			"another session": func(p *Packet) {
				p.Payload = bytes.Replace(p.Payload, k.Session[:], append([]byte{2}, k.Session[1:]...), 1)
			},
		} {
			p := packetOf(confirm)
			change(&p)
			for _, o := range b.Receive(begin, p) {
				if o.Deliver != nil || len(b.routes) != 0 {
					t.Errorf("a Confirm with %s is believed", name)
				}
			}
		}
		if late := b.Receive(begin.Add(time.Minute), packetOf(confirm)); len(b.routes) != 0 {
			t.Errorf("an old cookie is believed: %+v", late)
		}
		got := b.Receive(begin, packetOf(confirm))
		if len(got) != 1 || got[0].Deliver == nil || string(got[0].Deliver.Payload) != "request!" || got[0].Deliver.Hops != 4 {
			t.Fatalf("%+v", got)
		}
		if peer, ok := a.Next(k); !ok || peer.RTT != 3*time.Millisecond {
			t.Errorf("the next node is %+v", peer)
		}
		up, err := b.Up(begin, k, []byte("response"))
		if err != nil {
			t.Fatal(err)
		}
		if got := a.Receive(begin, packetOf(only(t, up))); len(got) != 1 || got[0].Deliver == nil || got[0].Deliver.Upstream {
			t.Errorf("%+v", got)
		}
	}
}

// TestLast: the last node knows by an ICMP error that quotes its Query, else after three
// tries, each of which waits twice as long as the one before.
func TestLast(t *testing.T) {
	k := Key{Flow: Toward(addr("10.0.0.1"), addr("10.9.0.2")), Session: SessionID{1}}
	a := endpoint(t, "a", "10.0.0.1")
	out, _ := a.Down(begin, k, 5, []byte("request!"))
	q := only(t, out)
	if got := a.Unreachable(begin, q.To, []byte("another datagram")); len(got) != 0 {
		t.Errorf("another's error is believed: %+v", got)
	}
	if got := a.Unreachable(begin, q.To, q.Payload[:100]); len(got) != 1 || got[0].Last == nil || *got[0].Last != k {
		t.Errorf("%+v", got)
	}
	a = endpoint(t, "a", "10.0.0.1")
	out, _ = a.Down(begin, k, 5, []byte("request!"))
	sent, last := len(out), time.Time{}
	for n := begin; last.IsZero() && n.Before(begin.Add(10*time.Second)); n = n.Add(10 * time.Millisecond) {
		for _, o := range a.Tick(n) {
			if o.Send != nil {
				sent++
			}
			if o.Last != nil {
				last = n
			}
		}
	}
	if took := last.Sub(begin); sent != tries || took != 3500*time.Millisecond {
		t.Errorf("%d Queries, last after %s", sent, took)
	}
}

// TestTooLong: what does not fit into a datagram is refused before anything is sent.
func TestTooLong(t *testing.T) {
	a := endpoint(t, "a", "10.0.0.1")
	k := Key{Flow: Toward(addr("10.0.0.1"), addr("10.9.0.2"))}
	if out, err := a.Down(begin, k, 5, make([]byte, MaxStream+1)); err != ErrTooLong || out != nil {
		t.Errorf("%v, %v", out, err)
	}
}

// TestOneSender: one node before this one may have all routes, for all publishers behind it.
// Where there is no room for another node, the first gives room, and within it the publisher
// that has most; when their time is up, nothing is left.
func TestOneSender(t *testing.T) {
	a, b := endpoint(t, "a", "2001:db8::1"), endpoint(t, "b", "2001:db8::2")
	confirmed := func(from, publisher string, i int) bool {
		k := Key{Flow: Toward(addr(publisher), addr("2001:db8:9::2")), Session: SessionID{byte(i), byte(i >> 8), 1}}
		p := netip.AddrPortFrom(addr(from), Port)
		m := a.message(Confirm, k, false, 3, []byte("request!"))
		m.NLI.Address, m.ResponderCookie = addr(from), b.cookie(k, "a", p, slot(begin))
		out := b.Receive(begin, Packet{From: p, To: netip.AddrPortFrom(addr("2001:db8::2"), Port), Payload: m.Append(nil)})
		return len(out) == 1 && out[0].Deliver != nil
	}
	have := func(from, publisher string) (n int) {
		for k, r := range b.routes {
			if r.up.peer.Address.Addr() == addr(from) && k.Flow.Source == addr(publisher) {
				n++
			}
		}
		return n
	}
	const node, other, greedy, modest = "2001:db8:5::1", "2001:db8:6::1", "2001:db8:7::1", "2001:db8:8::1"
	for i := range maxState {
		publisher := greedy
		if i%8 == 0 {
			publisher = modest
		}
		if !confirmed(node, publisher, i) {
			t.Fatalf("a node's Confirm %d of %d is not taken", i, maxState)
		}
	}
	const more = maxState / 4
	for i := range more {
		if !confirmed(other, greedy, i) {
			t.Fatalf("another node finds no room for Confirm %d", i)
		}
	}
	if n := have(other, greedy); n != more || len(b.routes) > maxState || len(b.routes) < maxState-room {
		t.Errorf("%d routes of another node, %d in all; want %d and %d", n, len(b.routes), more, maxState)
	}
	if n := have(node, modest); n != maxState/8 {
		t.Errorf("a publisher has %d of its %d routes, while another behind the same node has most", n, maxState/8)
	}
	for i := range 2 * maxState { // what one node does costs nobody more than equal parts
		confirmed(other, modest, maxState+i)
	}
	if n := have(node, modest) + have(node, greedy); n < maxState/2-room {
		t.Errorf("%d routes are left to a node, of %d", n, maxState)
	}
	if b.Tick(begin.Add(time.Hour)); len(b.routes) != 0 {
		t.Errorf("%d routes are kept", len(b.routes))
	}
}

// FuzzReceive: whatever comes from an address that no cookie has proved, however often, it is
// sent no more octets than came, to no other machine than it names, and makes no state.
func FuzzReceive(f *testing.F) {
	query := foreignQuery(4)
	query.NAT = []byte("nats")
	for _, m := range append(samples(), foreignQuery(16), query) {
		f.Add(m.Append(nil))
		f.Add(m.AppendStream(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e := endpoint(t, "b", "10.0.0.2")
		came, sent := 0, 0
		for range 3 {
			came += len(b)
			for _, o := range e.Receive(begin, Packet{From: netip.MustParseAddrPort("10.0.0.1:270"), To: netip.MustParseAddrPort("10.9.0.2:270"), Payload: b}) {
				if o.Send == nil {
					t.Fatalf("%+v", o)
				}
				if to := o.Send.To; !to.Addr().IsGlobalUnicast() || to.Addr() == addr("10.0.0.2") || to.Port() != 270 {
					t.Fatalf("an answer goes to %s", to)
				}
				sent += len(o.Send.Payload)
			}
			if sent > came || len(e.routes) > 0 {
				t.Fatalf("%d octets for %d, %d routes", sent, came, len(e.routes))
			}
		}
		from := netip.MustParseAddrPort("10.0.0.1:50000")
		for _, o := range e.Receive(begin, Packet{From: from, Payload: b, Stream: true}) {
			if o.Send != nil && (!o.Send.Stream || o.Send.To != from || o.Send.Dial) || o.Send == nil && o.End == nil || len(e.routes) > 0 {
				t.Fatalf("%+v, %d routes", o, len(e.routes))
			}
		}
	})
}
