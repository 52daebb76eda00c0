package leases

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"context"

	"github.com/onpath/onpath"
)

// TestShows: only the password, on a line of its own, within bounds and without a redirect.
func TestShows(t *testing.T) {
	over := make(chan struct{})
	answers := map[string]http.HandlerFunc{
		"the password":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "word\n") },
		"among others":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "another\n  word\n") },
		"another's":     func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "another\n") },
		"within a line": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a word\n") },
		"its beginning": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "wor\n") },
		"an empty page": func(http.ResponseWriter, *http.Request) {},
		"behind a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://203.0.113.9/", http.StatusFound)
		},
		"behind much": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x\n", 600)+"word\n")
		},
		"in an error's page": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404); _, _ = io.WriteString(w, "word\n") },
		"never": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-over
		},
	}
	defer close(over)
	for what, h := range answers {
		t.Run(what, func(t *testing.T) {
			web := httptest.NewServer(h)
			defer web.CloseClientConnections()
			f := &fetcher{client: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, n, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, n, web.Listener.Addr().String())
			}}, CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect }}}
			patience := time.Minute
			if what == "never" {
				patience = 2 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			got, err := f.shows(ctx, netip.MustParseAddr("192.0.2.1"), "word")
			if want := what == "the password" || what == "among others"; got != want {
				t.Errorf("%t, %v", got, err)
			}
		})
	}
}

// TestProvesNothing: some addresses are not even asked.
func TestProvesNothing(t *testing.T) {
	l := leasesOf(t, noDatapath{})
	for _, address := range []string{"127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1", "::ffff:127.0.0.1"} {
		r := l.Proves(t.Context(), onpath.PasswordRequest{Address: netip.MustParseAddr(address), Password: "word"})
		if r.Proved || !strings.Contains(r.Saw, "asked for nothing") {
			t.Errorf("%s: %+v", address, r)
		}
	}
}
