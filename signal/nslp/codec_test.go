package nslp

import (
	"bytes"
	"crypto/ed25519"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

var (
	now = time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	key = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
)

// figure3 is the paper's example, with its headers as they stand there.
const figure3 = `SETUP NetServ.apps.NetMonitor_1.0.0 NETSERV/0.1
dependencies:
filter-port:5060
filter-PROTO:udp
notification:
properties:visualizer_ip=1.2.3.4,visualizer_port=5678
ttl:3600
user:janedoe
url:http://content-publisher.com/modules/netmonitor.jar
signature:4Z+HvDEm2WhHJrg9UKovwmMutxGibsA71FTMFykVa0Y/xGc1G8o=

`

func samples() []*Message {
	setup := &Message{
		Type: Setup, Module: "netmonitor", Dependencies: []string{"kv/1", "log, 1"}, FilterPort: 5060, FilterProtocol: "udp",
		FilterTo: []netip.Prefix{netip.MustParsePrefix("10.9.0.2/32"), netip.MustParsePrefix("2001:db8::/32")}, Properties: []string{"a=b", "c=d%;,e"},
		TTL: time.Minute, User: "jané doe", URL: "http://10.0.0.1/m.wasm", Hash: HashOf([]byte("m")), Password: " x ",
		Fetch: []string{"10.0.0.1", "[2001:db8::1]:8080", "a,b"},
	}
	setup.Flow = Flow{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:9::2")}
	setup.Sign(key, now, Nonce{1})
	probe := &Message{Type: Probe, Flow: Flow{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}}
	probe.Sign(key, now, Nonce{2})
	trigger := &Message{Type: Trigger, Wrapped: probe.Append(nil)}
	trigger.Sign(key, now, Nonce{3})
	entry := Entry{Node: "gw1", Address: netip.MustParseAddr("10.0.0.1"), RTT: 1200 * time.Microsecond, State: Refused, Reason: "NoShare",
		Words: "no; none, at all = nothing", Modules: []string{"netmonitor ready 59"}, Blocks: []string{"kv/1"}, Policy: []string{"share=20%"}}
	back := Entry{Node: "gw2", State: Installed, Back: []Entry{entry, {Node: "gw3"}}}
	response := &Message{Type: Response, Nonce: Nonce{4}, Status: "why; not, so", Stack: []Entry{entry, back}}
	signed, short := entry, entry
	signed.sign(key, probe.Append(nil))
	short.sign(key, probe.Append(nil))
	short.shorten()
	proved := &Message{Type: Response, Nonce: Nonce{2}, Stack: []Entry{signed, short}}
	return []*Message{setup, probe, trigger, response, proved}
}

// TestForms: both forms, and each from the other, without loss.
func TestForms(t *testing.T) {
	for _, m := range samples() {
		binary, err := Parse(m.Append(nil))
		if err != nil || !reflect.DeepEqual(binary, m) {
			t.Fatalf("binary of %s: %v\n got %+v\nwant %+v", m.Type, err, binary, m)
		}
		text, err := ParseText(m.Text())
		if err != nil || !reflect.DeepEqual(text, m) {
			t.Fatalf("text of %s: %v\n%s got %+v\nwant %+v", m.Type, err, m.Text(), text, m)
		}
	}
	m, err := ParseText(figure3)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.ToLower(figure3); strings.ToLower(m.Text()) != want {
		t.Errorf("the paper's example comes back as\n%s", m.Text())
	}
}

// TestSignature: each octet counts.
func TestSignature(t *testing.T) {
	m := samples()[0]
	if r := m.Verify(); r != nil {
		t.Fatal(r)
	}
	b := m.Append(nil)
	accepted := 0
	for i := range b {
		for _, bit := range []byte{1, 0x80} {
			c := bytes.Clone(b)
			c[i] ^= bit
			if changed, err := Parse(c); err == nil && changed.Verify() == nil {
				t.Fatalf("octet %d changed from %#x to %#x is accepted", i, b[i], c[i])
			} else if err == nil {
				accepted++
			}
		}
	}
	if accepted == 0 {
		t.Error("no changed request could be read: only the parser was tested")
	}
	m.Signature = nil
	if r := m.Verify(); r == nil || r.Reason != "Unsigned" {
		t.Errorf("without a signature: %v", r)
	}
}

// FuzzParse: nothing that comes in panics, and there is one form of each message.
func FuzzParse(f *testing.F) {
	for _, m := range samples() {
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			_ = fieldOf(b, tagNonce)
			return
		}
		if n := fieldOf(b, tagNonce); m.Type != Response && !bytes.Equal(n, nonce{&m.Nonce}.bytes()) {
			t.Fatalf("nonce %x; want %x", n, m.Nonce)
		}
		if !bytes.Equal(m.Append(nil), b) {
			t.Fatalf("%x\n%x", m.Append(nil), b)
		}
		text, err := ParseText(m.Text())
		if err != nil || !bytes.Equal(text.Append(nil), b) {
			t.Fatalf("%v: %q", err, m.Text())
		}
	})
}

// FuzzParseText: nothing that is typed panics, and what is read is written alike.
func FuzzParseText(f *testing.F) {
	f.Add(figure3)
	for _, m := range samples() {
		f.Add(m.Text())
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseText(s)
		if err != nil {
			return
		}
		again, err := ParseText(m.Text())
		if err != nil || !bytes.Equal(again.Append(nil), m.Append(nil)) {
			t.Fatalf("%v: %q and %q", err, s, m.Text())
		}
	})
}
