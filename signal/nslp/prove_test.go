package nslp

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath/signal/gist"
)

var otherKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{3}, 32))

// TestAnswersAreProved: what somebody on the way changes in an answer, or plays again, is not
// believed; nor is an answer without the signature of a node whose key is known.
func TestAnswersAreProved(t *testing.T) {
	request := func(n byte) []byte {
		m := simSetup()
		m.Sign(simKey, now, Nonce{n})
		return m.Append(nil)
	}
	first, second := request(1), request(2)
	entry := Entry{Node: "gw1", State: Installed, Words: "well", Modules: []string{"m ready 60"}, Blocks: []string{"kv/1"}, Policy: []string{"share=1"},
		Servers: []string{"m tcp 192.0.2.1:80"}}
	entry.sign(key, second)
	for what, c := range map[string]struct {
		known  bool
		reason string // empty: it is believed
		change func(e *Entry)
	}{
		"as it was":                      {true, "", func(*Entry) {}},
		"of a node not known":            {false, "", func(*Entry) {}},
		"without its details":            {true, "", (*Entry).shorten},
		"its address and round trip":     {true, "", func(e *Entry) { e.RTT, e.Address = time.Second, simUser }},
		"another state":                  {true, "WrongSignature", func(e *Entry) { e.State = Refused }},
		"another reason":                 {true, "WrongSignature", func(e *Entry) { e.Reason = "NoShare" }},
		"other words":                    {true, "WrongSignature", func(e *Entry) { e.Words = "ill" }},
		"another policy":                 {true, "WrongSignature", func(e *Entry) { e.Policy[0] = "share=2" }},
		"another server":                 {true, "WrongSignature", func(e *Entry) { e.Servers = []string{"m tcp 192.0.2.2:80"} }},
		"no server":                      {true, "WrongSignature", func(e *Entry) { e.Servers = nil }},
		"no details, and no digest":      {true, "WrongSignature", func(e *Entry) { e.shorten(); e.Digest = nil }},
		"details beside their digest":    {true, "WrongSignature", func(e *Entry) { e.shorten(); e.Words = "ill" }},
		"another node's name":            {false, "WrongSignature", func(e *Entry) { e.Node = "gw2" }},
		"no signature":                   {true, "Unsigned", func(e *Entry) { e.Signature = nil }},
		"no signature, not known":        {false, "Unsigned", func(e *Entry) { e.Signature, e.Key = nil, nil }},
		"another's signature":            {true, "OtherKey", func(e *Entry) { e.sign(otherKey, second) }},
		"another's key":                  {true, "OtherKey", func(e *Entry) { e.Key = otherKey.Public().(ed25519.PublicKey) }},
		"no key":                         {true, "OtherKey", func(e *Entry) { e.Key = nil }},
		"half a key":                     {false, "WrongSignature", func(e *Entry) { e.Key = e.Key[:16] }},
		"the answer to a request before": {true, "WrongSignature", func(e *Entry) { e.sign(key, first) }},
		"a refusal without a signature":  {true, "Unsigned", func(e *Entry) { e.State, e.Signature = Refused, nil }},
	} {
		e := entry
		e.Policy = slices.Clone(entry.Policy)
		c.change(&e)
		state := e.State
		m := &Message{Type: Response, Nonce: Nonce{2}, Stack: []Entry{e}}
		back, err := Parse(m.Append(nil))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var learnt []string
		back.Prove(second, func(string) (keys [][]byte) {
			if c.known {
				keys = append(keys, key.Public().(ed25519.PublicKey))
			}
			return keys
		}, func(node string, k []byte) { learnt = append(learnt, node) })
		got := back.Stack[0]
		if c.reason == "" && got.State != state || c.reason != "" && (got.State != Unproved || got.Reason != c.reason) {
			t.Errorf("%s: %s %s, want reason %q", what, got.State, got.Reason, c.reason)
		}
		if (len(learnt) > 0) != (!c.known && c.reason == "") {
			t.Errorf("%s: keys learnt of %v", what, learnt)
		}
	}
	old := &Message{Stack: []Entry{{Node: "old", State: Refused, Reason: "UnknownFormat"}}}
	if old.Prove(second, func(string) [][]byte { return nil }, nil); old.Stack[0].Reason != "UnknownFormat" {
		t.Errorf("a node that cannot read the request: %+v", old.Stack[0])
	}
}

// TestOneKeyOfEachNode: the first key that a node shows is its only one, within one answer too.
func TestOneKeyOfEachNode(t *testing.T) {
	m := &Message{Type: Probe}
	m.Sign(simKey, now, Nonce{1})
	request := m.Append(nil)
	stack := []Entry{{Node: "gw1", State: Present}, {Node: "gw1", State: Present}}
	stack[0].sign(key, request)
	stack[1].sign(otherKey, request)
	known := map[string][][]byte{}
	r := &Message{Stack: stack}
	r.Prove(request, func(n string) [][]byte { return known[n] }, func(n string, k []byte) { known[n] = append(known[n], k) })
	if r.Stack[0].State != Present || r.Stack[1].Reason != "OtherKey" {
		t.Errorf("%+v", r.Stack)
	}
}

// TestWayBackIsProved: entries of a TRIGGER's way back are signed for what it wraps.
func TestWayBackIsProved(t *testing.T) {
	wrapped := &Message{Type: Probe}
	wrapped.Sign(simKey, now, Nonce{1})
	m := &Message{Type: Trigger, Wrapped: wrapped.Append(nil)}
	m.Sign(simKey, now, Nonce{2})
	for reason, request := range map[string][]byte{"": m.Wrapped, "WrongSignature": m.Append(nil)} {
		last, back := Entry{Node: "gw1"}, Entry{Node: "gw2", State: Present}
		last.sign(key, m.Append(nil))
		back.sign(otherKey, request)
		last.Back = []Entry{back}
		r := &Message{Stack: []Entry{last}}
		r.Prove(m.Append(nil), func(string) [][]byte { return nil }, func(string, []byte) {})
		if r.Stack[0].Reason != "" || r.Stack[0].Back[0].Reason != reason {
			t.Errorf("%+v, want reason %q of the way back", r.Stack[0], reason)
		}
	}
}

// TestLongMessages: a request and a stack that no datagram holds pass by connections, through
// twelve nodes; where a node takes none, the publisher learns so.
func TestLongMessages(t *testing.T) {
	long := simSetup()
	for i := range 100 {
		long.Properties = append(long.Properties, fmt.Sprintf("property-%d=%s", i, strings.Repeat("x", 50)))
	}
	for _, trip := range []time.Duration{0, 300 * time.Millisecond} {
		s := far(t, 12, trip)
		for i := range 30 {
			s.blocks = append(s.blocks, fmt.Sprintf("a-building-block/%d", i))
		}
		s.timeout = time.Minute
		m := *long
		s.settled(&m, Installed)
		s.settled(&Message{Type: Probe}, Present)
		if len(s.connections) != 11 { // that of the publisher is closed
			t.Errorf("%d connections", len(s.connections))
		}
	}
	for what, change := range map[string]func(*simulated){"takes no connections": func(n *simulated) { n.port = 0; n.boot() },
		"cannot be reached by TCP": func(n *simulated) { n.shut = true }} {
		s := far(t, 3, 0)
		change(s.nodes[s.routes[0][1]])
		m := *long
		r, err := s.request(&m)
		if err != nil || len(r.Stack) != 1 || r.Stack[0].State != Installed || !strings.Contains(r.Status, what) {
			t.Errorf("past a node that %s: %+v, %v", what, r, err)
		}
		s = far(t, 3, 0)
		change(s.nodes[s.routes[0][0]])
		m = *long
		if r, err := s.request(&m); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("to a node that %s: %+v, %v", what, r, err)
		}
	}
	over := simSetup()
	over.Properties = []string{"p=" + strings.Repeat("x", gist.MaxStream)}
	if _, err := far(t, 1, 0).request(over); err == nil {
		t.Error("a request that no message holds is sent")
	}
}

// FuzzProve: whatever comes as a response, no entry is believed that a node whose key is known
// has not signed for this request; and each fits where it must.
func FuzzProve(f *testing.F) {
	request := samples()[1].Append(nil)
	for _, m := range samples()[3:] {
		f.Add(m.Append(nil))
	}
	public := key.Public().(ed25519.PublicKey)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil || m.Type != Response {
			return
		}
		if short := fit(m, MaxLength); len(short) > MaxLength && len(m.Stack) > 1 {
			if _, err := Parse(short); err != nil {
				t.Fatalf("cut to what cannot be read: %v", err)
			}
		}
		m.Prove(request, func(string) [][]byte { return [][]byte{public} }, func(node string, key []byte) { t.Fatalf("learns %x of %s", key, node) })
		for i := range m.Stack {
			if e := &m.Stack[i]; e.State != Unproved && !ed25519.Verify(public, e.signed(request), e.Signature) {
				t.Fatalf("%+v is believed", e)
			}
		}
	})
}
