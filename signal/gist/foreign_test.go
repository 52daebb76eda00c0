package gist

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestAnyQueryIsAnswered: a Response to any of the Queries that were sent finds the next
// node, its round trip is that of this Query, and later Responses are confirmed as well.
func TestAnyQueryIsAnswered(t *testing.T) {
	for _, trip := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 2 * time.Second, 3400 * time.Millisecond} {
		a, b := endpoint(t, "a", "10.0.0.1"), endpoint(t, "b", "10.0.0.2")
		k := Key{Flow: Toward(addr("10.0.0.1"), addr("10.9.0.2")), Session: SessionID{1}}
		type flight struct {
			at time.Time
			d  *Datagram
		}
		var queries, answers []flight
		confirms, payloads := 0, 0
		out, err := a.Down(begin, k, 5, []byte("request!"))
		if err != nil {
			t.Fatal(err)
		}
		for now := begin; now.Before(begin.Add(6 * time.Second)); now = now.Add(10 * time.Millisecond) {
			out = append(out, a.Tick(now)...)
			for len(answers) > 0 && !now.Before(answers[0].at) {
				out = append(out, a.Receive(now, packetOf(answers[0].d))...)
				answers = answers[1:]
			}
			for _, o := range out {
				if o.Last != nil {
					t.Errorf("with a round trip of %s it takes itself for the last node at %s", trip, now.Sub(begin))
				}
				if o.Send == nil {
					continue
				}
				if m, err := Parse(o.Send.Payload); err != nil {
					t.Fatal(err)
				} else if m.Type == Query {
					queries = append(queries, flight{now.Add(trip / 2), o.Send})
				} else if confirms++; m.Payload != nil {
					payloads++
				}
			}
			out = nil
			for len(queries) > 0 && !now.Before(queries[0].at) {
				for _, o := range b.Receive(now, packetOf(queries[0].d)) {
					answers = append(answers, flight{queries[0].at.Add(trip / 2), o.Send})
				}
				queries = queries[1:]
			}
		}
		sent := 1
		for _, at := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond} {
			if at < trip {
				sent++
			}
		}
		for what, cookie := range map[string][]byte{"an empty": {}, "another": make([]byte, 16)} {
			m := b.message(Response, k, true, DefaultHops, nil)
			m.Source, m.NLI.Address, m.QueryCookie = false, addr("10.0.0.3"), cookie
			if out := arrive(a, "10.0.0.3:270", m); len(out) != 0 {
				t.Errorf("a Response with %s cookie is taken: %+v", what, out)
			}
		}
		peer, ok := a.Next(k)
		if !ok || peer.RTT.Round(20*time.Millisecond) != trip || confirms != sent || payloads != 1 {
			t.Errorf("with a round trip of %s: next node %+v; of %d Queries %d are confirmed, the request is sent %d times",
				trip, peer, sent, confirms, payloads)
		}
	}
}

// TestLateAnswer: a node that was taken for the last one learns of the next by a late Response.
func TestLateAnswer(t *testing.T) {
	a, b := endpoint(t, "a", "10.0.0.1"), endpoint(t, "b", "10.0.0.2")
	k := Key{Flow: Toward(addr("10.0.0.1"), addr("10.9.0.2")), Session: SessionID{1}}
	out, _ := a.Down(begin, k, 5, []byte("request!"))
	response := only(t, b.Receive(begin, packetOf(only(t, out))))
	now := begin
	for last := false; !last; now = now.Add(10 * time.Millisecond) {
		for _, o := range a.Tick(now) {
			last = last || o.Last != nil
		}
	}
	if a.Receive(now, packetOf(response)); a.routes[k].down.phase != known {
		t.Error("a late Response is not taken")
	}
	if out, err := a.Down(now, k, 5, []byte("request!")); err != nil || len(out) != 1 {
		t.Errorf("%+v, %v", out, err)
	} else if m, err := Parse(out[0].Send.Payload); err != nil || m.Type != Data {
		t.Errorf("the next request goes in a message of type %d, %v", m.Type, err)
	}
}

// foreignQuery is one as short as can be: another implementation's, by the flow's address.
func foreignQuery(cookie int) *Message {
	flow := Toward(addr("10.9.0.77"), addr("10.1.0.11"))
	return &Message{Hops: 10, NSLPID: NSLPID, Type: Query, QMode: true, Reply: true, MRI: &flow, Session: &SessionID{7},
		NLI: &NLI{Peer: "nsis", TTL: 64, Valid: time.Minute, Address: addr("10.9.0.2")}, QueryCookie: make([]byte, cookie)}
}

func arrive(e *Endpoint, from string, m *Message) []Output {
	return e.Receive(begin, Packet{From: netip.MustParseAddrPort(from), To: netip.MustParseAddrPort("10.1.0.11:270"), Payload: m.Append(nil)})
}

// TestAnswersGoToTheSender: Responses and Errors go to the address in the network layer
// information, at the port from which the Query came, and never to where no other machine is.
func TestAnswersGoToTheSender(t *testing.T) {
	for _, c := range []struct {
		nli, to string // to: empty for none
		source  bool
	}{
		{"10.9.0.2", "10.9.0.2:4000", false}, {"10.9.0.77", "10.9.0.77:4000", true},
		{"127.0.0.1", "", false}, {"224.0.0.1", "", false}, {"255.255.255.255", "", false}, {"0.0.0.0", "", false}, {"10.0.0.2", "", false},
	} {
		for what, change := range map[string]func(*Message){
			"Query": func(*Message) {}, "bad Query": func(m *Message) { m.MRI.DestinationBits = 8 },
		} {
			e := endpoint(t, "b", "10.0.0.2")
			m := foreignQuery(16)
			m.Payload, m.NLI.Address, m.Source = make([]byte, 128), addr(c.nli), c.source
			change(m)
			got := ""
			if out := arrive(e, "10.9.0.77:4000", m); len(out) > 0 {
				got = only(t, out).To.String()
			}
			if got != c.to {
				t.Errorf("a %s with NLI %s is answered to %q, want %q", what, c.nli, got, c.to)
			}
		}
	}
	e := endpoint(t, "b", "10.0.0.2")
	response, err := Parse(only(t, arrive(e, "10.9.0.77:270", &Message{Hops: 10, NSLPID: NSLPID, Type: Query, QMode: true, Reply: true,
		MRI: foreignQuery(4).MRI, Session: &SessionID{7}, NLI: foreignQuery(4).NLI, QueryCookie: []byte("1234"), Payload: make([]byte, 96)})).Payload)
	if err != nil {
		t.Fatal(err)
	}
	confirm := &Message{Hops: 10, NSLPID: NSLPID, Type: Confirm, Source: true, MRI: foreignQuery(4).MRI, Session: &SessionID{7},
		NLI: foreignQuery(4).NLI, ResponderCookie: response.ResponderCookie, Payload: []byte("request!")}
	if out := arrive(e, "10.9.0.2:270", confirm); len(out) != 1 || out[0].Deliver == nil {
		t.Errorf("the Confirm to it is not taken: %+v", out)
	}
	confirm.Session = &SessionID{8}
	if out := arrive(e, "10.9.0.2:270", confirm); len(out) != 0 {
		t.Errorf("a wrong cookie is answered: whoever sends many has the node tell others of them: %+v", out[0])
	}
}

// TestShortQuery: a Query that is shorter than its Response is answered when it comes again:
// a node sends an address no more octets than came from it, over all.
func TestShortQuery(t *testing.T) {
	for _, cookie := range []int{4, 16} {
		e := endpoint(t, "a-node-with-a-name-of-as-many-octets-as-there-may-be-for-a-node1", "10.0.0.2")
		m := foreignQuery(cookie)
		came, sent, answers := 0, 0, 0
		for range 5 {
			came += len(m.Append(nil))
			for _, o := range arrive(e, "10.9.0.2:270", m) {
				sent += len(o.Send.Payload)
				answers++
			}
			if sent > came {
				t.Fatalf("%d octets are sent, %d came", sent, came)
			}
		}
		if answers < 2 {
			t.Errorf("of 5 Queries with a cookie of %d octets %d are answered", cookie, answers)
		}
		for i := range 10_000 { // others come between
			m.NLI.Address = netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)})
			if out := arrive(e, "10.9.0.2:270", m); len(out) > 0 {
				t.Fatalf("the first Query of %s is answered", m.NLI.Address)
			}
		}
	}
}

// TestNATEcho: the object of a NAT comes back first in Responses and Errors (RFC 5971 §7.2.3).
func TestNATEcho(t *testing.T) {
	for _, bits := range []uint8{32, 8} {
		m := foreignQuery(4)
		m.NAT, m.Payload, m.MRI.DestinationBits = []byte("what the NAT has to say."), make([]byte, 128), bits
		d := only(t, arrive(endpoint(t, "b", "10.0.0.2"), "10.9.0.2:270", m))
		if got := d.Payload[headerLength:]; binary.BigEndian.Uint16(got) != objNAT || !bytes.Equal(got[4:4+len(m.NAT)], m.NAT) {
			t.Errorf("the first object of the answer is %x", got[:32])
		}
	}
}

// TestErrorsSayWhat: an Error is of no signalling application, says how the message came, and
// has the additional information that is its code's (RFC 5971 §A.4).
func TestErrorsSayWhat(t *testing.T) {
	object := func(kind, offset uint16, o []byte) []byte {
		v := binary.BigEndian.AppendUint16(nil, uint16(len(o)/4))
		v = append(binary.BigEndian.AppendUint16(v, offset), o...)
		b := binary.BigEndian.AppendUint16(nil, kind)
		return append(binary.BigEndian.AppendUint16(b, uint16(len(v)/4)), v...)
	}
	kindOf := func(kind uint16) []byte { return []byte{0, 3, 0, 1, byte(kind >> 8), byte(kind), 0, 0} }
	mri := func(change func(*MRI)) []byte {
		m := *foreignQuery(4).MRI
		change(&m)
		return appendObject(nil, objMRI, m.append(nil))
	}
	label := func(m *MRI) { m.HasLabel = true }
	for _, c := range []struct {
		what          string
		with          func(b *[]byte, m *Message)
		code, subcode int
		info          []byte
	}{
		{"a wrong length", func(b *[]byte, _ *Message) { (*b)[7]++ }, codeHeader, 3, nil},
		{"an object twice", func(b *[]byte, _ *Message) { *b = appendObject(*b, objSession, make([]byte, 16)); (*b)[7] += 5 },
			codeObjectType, 0, kindOf(objSession)},
		{"an unknown object", func(b *[]byte, _ *Message) { *b = appendObject(*b, 0x123, nil); (*b)[7]++ }, codeObjectType, 1, kindOf(0x123)},
		{"no cookie", func(b *[]byte, m *Message) { m.QueryCookie = nil; *b = m.Append(nil) }, codeObjectType, 2, kindOf(objQueryCookie)},
		{"no session", func(b *[]byte, m *Message) { m.Session = nil; *b = m.Append(nil) }, codeObjectType, 2, kindOf(objSession)},
		{"another's flag", func(b *[]byte, m *Message) { label(m.MRI); *b = m.Append(nil) }, codeObjectValue, 2, object(4, 4, mri(label))},
		{"a short session", func(b *[]byte, m *Message) {
			m.Session = nil
			short := m.Append(nil)
			*b = appendObject(short, objSession, make([]byte, 8))
			(*b)[7] += 3
		}, codeObjectValue, 0, object(4, 2, appendObject(nil, objSession, make([]byte, 8)))},
		{"many paths", func(b *[]byte, m *Message) { m.MRI.DestinationBits = 8; *b = m.Append(nil) }, codeMRI, 0,
			object(4, 4, mri(func(m *MRI) { m.DestinationBits = 8 }))},
	} {
		m := foreignQuery(4)
		m.Payload = make([]byte, 256)
		b := m.Append(nil)
		c.with(&b, m)
		if c.info == nil {
			c.info = []byte{0, 1, 0, 1, 0, byte((len(b) - headerLength) / 4), 0, 0}
			b[11] |= 0x80 // its sender's address is all that is known
		}
		e := endpoint(t, "b", "10.0.0.2")
		d := only(t, e.Receive(begin, Packet{From: netip.MustParseAddrPort("10.9.0.2:270"), To: netip.MustParseAddrPort("10.1.0.11:270"), Payload: b}))
		got, err := Parse(d.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if got.NSLPID != 0 || got.Type != ErrorMessage || int(got.Error.Code) != c.code || int(got.Error.Subcode) != c.subcode ||
			!bytes.Equal(got.Error.Info, c.info) || !bytes.Equal(got.Error.Header[:], b[4:12]) {
			t.Errorf("%s: application %d, %v, information %x, want %x", c.what, got.NSLPID, got.Error, got.Error.Info, c.info)
		}
		if at := slices.Index(d.Payload, objError); at < 0 || !bytes.Contains(d.Payload, append([]byte{byte(c.code), byte(c.subcode)}, errorFlags(got)...)) {
			t.Errorf("%s: the flags do not say that it came as a Query", c.what)
		}
	}
}

// errorFlags is the octet that an Error about a Query must have: D and Q, and S and M as it is.
func errorFlags(m *Message) []byte {
	return []byte{flag(m.Error.Session != nil, 0x80) | flag(m.Error.MRI != nil, 0x40) | 0x18}
}

// TestEndFound: a machine at the flow's end that speaks GIST and not this application says so:
// the node before it is the last one.
func TestEndFound(t *testing.T) {
	for _, code := range []uint16{codeEndpoint, codeNSLPID} {
		a := endpoint(t, "a", "10.0.0.1")
		k := Key{Flow: Toward(addr("10.0.0.1"), addr("10.9.0.2")), Session: SessionID{1}}
		if _, err := a.Down(begin, k, 5, []byte("request!")); err != nil {
			t.Fatal(err)
		}
		m := &Message{Hops: 1, Type: ErrorMessage, NLI: &NLI{Peer: "nsis", TTL: 64, Valid: time.Minute, Address: addr("10.9.0.2")},
			Error: &Error{Class: PermanentFailure, Code: code, Session: &k.Session, MRI: &k.Flow}}
		if out := arrive(a, "10.9.0.2:270", m); len(out) != 1 || out[0].Last == nil || *out[0].Last != k {
			t.Errorf("code %d: %+v", code, out)
		}
	}
}
