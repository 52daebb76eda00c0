package publish

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"sync/atomic"
	"testing"
)

// TestLoopEnds: a request that comes back is refused; others pass, of other proxies, too.
func TestLoopEnds(t *testing.T) {
	var h http.Handler
	var seen atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1) < 20 {
			h.ServeHTTP(w, r)
		}
	}))
	defer s.Close()
	u, _ := url.Parse(s.URL)
	proxy := httputil.NewSingleHostReverseProxy(u)
	h = loopGuard(proxy)(proxy)
	r, _ := http.NewRequest(http.MethodGet, s.URL, nil)
	r.Header.Set("Via", "1.1 other")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusLoopDetected || seen.Load() != 2 {
		t.Errorf("%s after %d requests, %v", answer.Status, seen.Load(), err)
	}
}

// TestLeadsTo: an origin that is the daemon itself is found, under each of its names.
func TestLeadsTo(t *testing.T) {
	for origin, want := range map[string]bool{
		"http://127.0.0.1": true, "http://[::1]:80": true, "http://0.0.0.0": true, "http://127.0.0.1:8080": true,
		"http://127.0.0.1:8000": false, "http://192.0.2.1": false, "https://127.0.0.1": false,
	} {
		u, err := url.Parse(origin)
		if err != nil {
			t.Fatal(err)
		}
		if got := LeadsTo(t.Context(), u, ":80", "127.0.0.1:8080"); got != want {
			t.Errorf("%s: %v", origin, got)
		}
	}
	if IsLocal(netip.MustParseAddr("192.0.2.1")) || !IsLocal(netip.MustParseAddr("127.0.0.1")) {
		t.Error("addresses of this machine")
	}
	if Serves("127.0.0.1:80", netip.MustParseAddr("127.0.0.2"), 80) || !Serves(":80", netip.MustParseAddr("127.0.0.2"), 80) {
		t.Error("what a place serves")
	}
}
