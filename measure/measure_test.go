package measure

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

var secret = []byte("a secret of the test's own, long")

func TestPairOnLoopback(t *testing.T) {
	r, err := NewReflector(netip.MustParseAddrPort("127.0.0.1:0"), secret)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	type news struct {
		name string
		v    Value
	}
	told := make(chan news, 100)
	s, err := NewSender(SenderOptions{From: netip.MustParseAddr("127.0.0.1"), Secret: secret, Told: func(n string, v Value) { told <- news{n, v} }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	deaf, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := gone.Addr().(*net.TCPAddr).AddrPort()
	gone.Close()
	s.Set([]Target{
		{Name: "closed", Address: closed, Connect: true, Every: MinEvery, Change: 1e9},
		{Name: "web", Address: web.Addr().(*net.TCPAddr).AddrPort(), Connect: true, Every: MinEvery, Change: 1e9},
		{Name: "near", Address: r.conn.LocalAddr().(*net.UDPAddr).AddrPort(), Every: MinEvery, Change: 1e9},
		{Name: "deaf", Address: deaf.LocalAddr().(*net.UDPAddr).AddrPort(), Every: MinEvery, Change: 0.1},
	})
	got := map[string]Value{}
	for len(got) < 4 {
		select {
		case n := <-told:
			got[n.name] = n.v
		case <-time.After(time.Minute):
			t.Fatalf("told only %v", got)
		}
	}
	if v := got["web"]; v.RTT <= 0 || v.Loss != 0 {
		t.Errorf("a server that does not speak STAMP: %+v", v)
	}
	if v := got["closed"]; v.RTT <= 0 || v.Loss != 0 {
		t.Errorf("a closed port, which answers: %+v", v)
	}
	if v := got["near"]; v.RTT <= 0 || v.RTT > time.Second || v.Loss != 0 {
		t.Errorf("near: %+v", v)
	}
	if v := got["deaf"]; v.RTT != 0 || v.Loss != 1 {
		t.Errorf("a node that does not answer: %+v", v)
	}
}

func TestForged(t *testing.T) {
	asked := request{sequence: 7, sent: ntp(time.Now())}.encode(requestKey(secret))
	if _, err := decodeRequest(asked, requestKey(secret)); err != nil {
		t.Error(err)
	}
	for i := range asked {
		forged := append([]byte{}, asked...)
		forged[i] ^= 0x40
		if _, err := decodeRequest(forged, requestKey(secret)); err == nil {
			t.Errorf("byte %d may be changed", i)
		}
	}
	for n := range len(asked) {
		if _, err := decodeRequest(asked[:n], requestKey(secret)); err == nil {
			t.Errorf("%d bytes are taken", n)
		}
	}
	if _, err := decodeReply(asked, replyKey(secret)); err == nil {
		t.Error("a request is taken for a reply")
	}
	answer := reply{1, 2, 3, request{4, 5, 6}}
	if got, err := decodeReply(answer.encode(replyKey(secret)), replyKey(secret)); err != nil || got != answer {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBetween(t *testing.T) {
	at := time.Date(2026, 11, 24, 5, 0, 0, 999_000_000, time.UTC)
	end := time.Date(2036, 2, 7, 6, 28, 15, 900_000_000, time.UTC) // the last second of the era
	for _, from := range []time.Time{at, end} {
		for _, d := range []time.Duration{0, time.Millisecond, 1500 * time.Millisecond, -20 * time.Millisecond} {
			if got := between(ntp(from), ntp(from.Add(d))); got.Round(time.Microsecond) != d {
				t.Errorf("%v from %v on: %v", d, from, got)
			}
		}
	}
}

func TestSeries(t *testing.T) {
	var s Series
	add := func(rtt time.Duration) bool {
		_, news := s.Add(Sample{RTT: rtt, Lost: rtt == 0}, 0.1)
		return news
	}
	if !add(100 * time.Millisecond) {
		t.Error("the first value is no news")
	}
	for range 40 {
		if add(105 * time.Millisecond) {
			t.Error("a change of 5 % is news")
		}
	}
	changed := 0
	for range 40 {
		if add(130 * time.Millisecond) {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("a change of 24 %% was told %d times", changed)
	}
	for i := range window {
		if news := add(0); i == 0 && news {
			t.Error("one lost packet is news")
		}
	}
	if s.told.Loss < 0.9 {
		t.Errorf("all is lost, told was %+v", s.told)
	}
}
