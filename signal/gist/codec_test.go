package gist

import (
	"bytes"
	"cmp"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func samples() []*Message {
	four, six := Toward(addr("10.0.0.1"), addr("10.9.0.2")), Toward(addr("2001:db8::1"), addr("2001:db8:9::2")).Inverted()
	six.HasProtocol, six.Protocol, six.HasLabel, six.FlowLabel = true, 17, true, 0x12345
	six.HasSourcePort, six.SourcePort, six.DestinationPort = true, 5060, 5061
	s := SessionID{1, 2, 3}
	n := &NLI{Peer: "gw1", Address: addr("10.0.0.1"), TTL: 64, Valid: time.Minute}
	n6 := &NLI{Peer: "gw12", Address: addr("2001:db8::1"), TTL: 64, Valid: time.Second}
	return []*Message{
		{Hops: 3, NSLPID: NSLPID, Type: Query, QMode: true, Source: true, Reply: true, MRI: &four, Session: &s, NLI: n, QueryCookie: []byte("12345678"), Payload: make([]byte, 8)},
		{Hops: 3, NSLPID: NSLPID, Type: Response, Reply: true, MRI: &six, Session: &s, NLI: n6, QueryCookie: []byte("1234"), ResponderCookie: []byte("abcd")},
		{Hops: 3, NSLPID: NSLPID, Type: Confirm, MRI: &four, Session: &s, NLI: n, ResponderCookie: []byte("abcd"), StackProposal: stackProposal},
		{Hops: 3, NSLPID: NSLPID, Type: Data, Explicit: true, MRI: &four, Session: &s, NLI: n, NAT: []byte("nats"), Payload: []byte("abcdefgh"), Others: []Object{{0x8abc, []byte("next")}}},
		{Hops: 3, NSLPID: NSLPID, Type: ErrorMessage, NLI: n, Error: &Error{Class: ProtocolError, Code: codeObjectType, Subcode: 1, Session: &s, MRI: &six,
			Comment: "why", Info: []byte{0, 1, 0, 1, 9, 9, 9, 9}, info: 1}},
	}
}

// TestCodec: what is written is read, and every cut or changed length is refused.
func TestCodec(t *testing.T) {
	for _, m := range samples() {
		b := m.Append(nil)
		got, err := Parse(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%d: %v\n got %+v\nwant %+v", m.Type, err, got, m)
		}
		for n := range b {
			if _, err := Parse(b[:n]); err == nil {
				t.Errorf("type %d cut to %d of %d bytes is accepted", m.Type, n, len(b))
			}
		}
	}
}

// TestObjects: each object once, and unknown ones as their flags say (RFC 5971 §A.2.1).
func TestObjects(t *testing.T) {
	for _, c := range []struct {
		head          uint16
		code, subcode int
		others        int
	}{{0x0123, codeObjectType, 1, 0}, {0x4123, 0, 0, 0}, {0x8123, 0, 0, 1}, {0xc123, codeObjectType, 5, 0}, {objSession, codeObjectType, 0, 0}} {
		b := appendObject(samples()[0].Append(nil), c.head, make([]byte, 16))
		b[7] += 5
		m, err := Parse(b)
		if c.code == 0 {
			if err != nil || len(m.Others) != c.others {
				t.Errorf("object %#x: %v, %d go along", c.head, err, len(m.Others))
			}
			continue
		}
		if e, ok := err.(*Error); !ok || int(e.Code) != c.code || int(e.Subcode) != c.subcode {
			t.Errorf("object %#x: %v", c.head, err)
		}
	}
}

// TestObjectsOfTypes: an object that a message of its type does not have is refused, and so is
// a stack proposal without its data, and whatever has both flags (RFC 5971 §5.1, §A.2.1).
func TestObjectsOfTypes(t *testing.T) {
	stack := map[uint16][]byte{objStackProposal: stackProposal, objStackConfig: stackConfig(0, 0)}
	for _, c := range []struct {
		of      int // which sample
		heads   []uint16
		subcode int
		about   uint16
	}{
		{0, []uint16{objResponderCookie}, 3, objResponderCookie}, {0, []uint16{objHelloID}, 3, objHelloID},
		{2, []uint16{objQueryCookie}, 3, objQueryCookie}, {3, []uint16{objStackProposal, objStackConfig}, 3, objStackProposal},
		{0, []uint16{objStackProposal}, 2, objStackConfig}, {1, []uint16{objStackConfig}, 2, objStackProposal},
		{0, []uint16{objStackProposal, objStackConfig}, -1, 0}, {0, []uint16{0xc000 | objNAT}, 5, objNAT},
		{0, []uint16{0x8000 | objNAT}, -1, 0},
	} {
		b := samples()[c.of].Append(nil)
		for _, h := range c.heads {
			before := len(b)
			b = appendObject(b, h, []byte(cmp.Or(string(stack[h]), "abcd")))
			b[7] += byte(len(b)-before) / 4
		}
		_, err := Parse(b)
		if c.subcode < 0 {
			if err != nil {
				t.Errorf("type %d with %x: %v", c.of, c.heads, err)
			}
			continue
		}
		want := append([]byte{0, infoType, 0, 1}, words(int(c.about))...)
		if e, ok := err.(*Error); !ok || e.Code != codeObjectType || int(e.Subcode) != c.subcode || e.Info[5] != want[5] {
			t.Errorf("type %d with %x: %v, want subcode %d about object %d", c.of, c.heads, err, c.subcode, c.about)
		}
	}
}

// FuzzParse: nothing that comes in panics, and what is read is written alike.
func FuzzParse(f *testing.F) {
	for _, m := range samples() {
		f.Add(m.Append(nil))
		f.Add(m.AppendStream(nil))
	}
	f.Add((&Message{Hops: 1, Type: Hello, Reply: true, HelloID: []byte{0, 0, 0, 1}}).AppendStream(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := Parse(b); err == nil {
			if again, err := Parse(m.Append(nil)); err != nil || !bytes.Equal(m.Append(nil), again.Append(nil)) {
				t.Fatalf("%v: %+v\n%+v", err, m, again)
			}
		}
		if m, err := ParseStream(b); err == nil {
			if again, err := ParseStream(m.AppendStream(nil)); err != nil || !bytes.Equal(m.AppendStream(nil), again.AppendStream(nil)) {
				t.Fatalf("%v: %+v\n%+v", err, m, again)
			}
		}
	})
}
