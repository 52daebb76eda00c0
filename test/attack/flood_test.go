package attack_test

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath/api"
)

// from is a stranger at an address of this machine's.
func (s *server) from(address string) *somebody {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{DialContext: d.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &somebody{base: "https://" + s.address, http: &http.Client{Transport: transport}}
}

// TestFloods: whatever one network sends, another is answered, and the log grows by little.
func TestFloods(t *testing.T) {
	const most = 32
	s := newServer(t, func(o *api.Options) { o.Connections = most })
	bad, good := s.from("127.0.0.2"), s.from("127.0.1.1")
	read := func(who *somebody) int {
		code, _ := who.ask(t.Context(), "GET", "/log/key", "")
		return code
	}
	t.Run("the log", func(t *testing.T) {
		for end := time.Now().Add(time.Minute); read(bad) != 429; {
			if time.Now().After(end) {
				t.Fatal("it is answered without end")
			}
		}
		if code := read(good); code != 200 {
			t.Errorf("another network: %d", code)
		}
	})
	t.Run("sign-ins", func(t *testing.T) {
		for range 300 {
			if code, text := bad.ask(t.Context(), "GET", "/v1/chains", ""); code != 403 {
				t.Fatalf("%d %s", code, text)
			}
		}
		before := len(s.refusals(100))
		if before < 100 || before > 110 {
			t.Errorf("300 are in the log %d times", before)
		}
		s.clock.mu.Lock()
		s.clock.lead = 11 * time.Minute
		s.clock.mu.Unlock()
		if code, _ := bad.ask(t.Context(), "GET", "/v1/chains", ""); code != 403 {
			t.Errorf("%d", code)
		}
		if all := s.refusals(before + 1); !strings.Contains(all[len(all)-1], "others since the last entry") {
			t.Errorf("the others are not counted: %q", all[len(all)-1])
		}
	})
	t.Run("connections", func(t *testing.T) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		var last net.Conn
		for range most { // half of them are one network's
			c, err := d.DialContext(t.Context(), "tcp", s.address)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			last = c
		}
		_ = last.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := last.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a network may have all of %d connections: %v", most, err)
		}
		if code := read(good); code != 200 {
			t.Errorf("another network: %d", code)
		}
	})
}
