package publish

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath/signal/nslp"
	"github.com/onpath/onpath/signal/publisher"
)

// TestRedirect: clients of a crowd that is served are sent to the module, with their path and
// query and for a short time; others, and what is no GET, are handed on.
func TestRedirect(t *testing.T) {
	o := publisher.Options{Module: "cdn", Threshold: 2, Window: 10 * time.Second, Cold: time.Minute, TTL: time.Minute, Bits4: 24, Bits6: 48}
	c := &CDN{Daemon: NewDaemon(Config{Options: o, Out: io.Discard}), Life: 7 * time.Second}
	h := c.redirect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	ask := func(method, from string) *http.Response {
		r := httptest.NewRequest(method, "http://site.example/a/b?c=d", nil)
		r.RemoteAddr = from
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
	for range 2 {
		if r := ask("GET", "192.0.2.1:1000"); r.StatusCode != http.StatusTeapot {
			t.Errorf("without a module: %s", r.Status)
		}
	}
	stack := []nslp.Entry{{Node: "gw1", State: nslp.Present, Modules: []string{"cdn ready 60"},
		Servers: []string{"cdn tcp 203.0.113.5:80", "cdn tcp [2001:db8::5]:80"}}}
	for range 2 {
		for _, s := range c.crowds.Next(time.Now()) {
			if s.Toward != netip.MustParseAddr("192.0.2.1") {
				t.Errorf("%+v", s)
			}
			c.crowds.Reply(time.Now(), s, stack, nil)
		}
	}
	r := ask("GET", "192.0.2.77:1000")
	if at := r.Header.Get("Location"); r.StatusCode != http.StatusFound || at != "http://203.0.113.5/a/b?c=d" ||
		r.Header.Get("Cache-Control") != "private, max-age=7" {
		t.Errorf("with a module: %s to %q, %q", r.Status, at, r.Header.Get("Cache-Control"))
	}
	for from, method := range map[string]string{"192.0.2.1:1": "POST", "198.51.100.1:1": "GET", "[2001:db8:1::1]:1": "GET"} {
		if r := ask(method, from); r.StatusCode != http.StatusTeapot {
			t.Errorf("%s from %s: %s", method, from, r.Status)
		}
	}
}
