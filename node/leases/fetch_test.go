package leases

import (
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/machine"
	"github.com/onpath/onpath/node/punt"
	"github.com/onpath/onpath/signal/nslp"
)

// TestFetch: a module comes by its hash, within limits; all else has its reason.
func TestFetch(t *testing.T) {
	module, err := os.ReadFile("../../functions/netmonitor/netmonitor.wasm")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/m.wasm":
			_, _ = w.Write(module)
		case "/large":
			_, _ = io.Copy(w, io.LimitReader(zeros{}, onpath.MaxModuleBytes+1))
		case "/most":
			_, _ = io.Copy(w, io.LimitReader(zeros{}, onpath.MaxModuleBytes))
		case "/slow":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-over
		case "/elsewhere":
			http.Redirect(w, r, "/m.wasm", http.StatusFound)
		case onpath.ClaimPath:
			_, _ = io.WriteString(w, "another\nonce\n")
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() { close(over); web.Close() })
	// What goes to port 80 of the publisher's address comes to the server.
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, web.Listener.Addr().String())
	}}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for what, c := range map[string]struct {
		path, reason string
		with         func(f *fetcher, m *nslp.Message, o *onpath.LocalLease)
	}{
		"the module":      {"/m.wasm", "", nil},
		"nothing":         {"/none", "NoModule", nil},
		"a redirect":      {"/elsewhere", "NoModule", nil},
		"too large":       {"/large", "ModuleTooLarge", nil},
		"as large as may": {"/most", "WrongHash", nil},
		"too slow":        {"/slow", "ModuleTooSlow", nil},
		"another hash":    {"/m.wasm", "WrongHash", func(_ *fetcher, _ *nslp.Message, o *onpath.LocalLease) { o.SHA256 = strings.Repeat("0", 64) }},
		"no module at all": {"/most", "BadModule", func(_ *fetcher, _ *nslp.Message, o *onpath.LocalLease) {
			o.SHA256 = hexHash(make([]byte, onpath.MaxModuleBytes))
		}},
		"a block withheld": {"/m.wasm", "MissingBlock", func(f *fetcher, _ *nslp.Message, _ *onpath.LocalLease) { f.blocks = engine.Blocks[:1] }},
		"a password":       {"/m.wasm", "", func(_ *fetcher, m *nslp.Message, o *onpath.LocalLease) { o.Known, m.Password = false, "once" }},
		"a wrong password": {"/m.wasm", "WrongPassword", func(_ *fetcher, m *nslp.Message, o *onpath.LocalLease) { o.Known, m.Password = false, "twice" }},
	} {
		f := &fetcher{client, 300 * time.Millisecond, engine.Blocks}
		m := &nslp.Message{Type: nslp.Setup, URL: "http://192.0.2.1" + c.path}
		o := &onpath.LocalLease{LeaseSpec: onpath.LeaseSpec{Known: true, SHA256: hexHash(module),
			To: []onpath.Prefix{{Prefix: netip.MustParsePrefix("192.0.2.1/32")}}}}
		if c.with != nil {
			c.with(f, m, o)
		}
		reason := ""
		r := f.bring(t.Context(), m, o)
		if r != nil {
			reason = r.Reason
		}
		if reason != c.reason || (reason == "") != (len(o.Code) > 0) {
			t.Errorf("%s: %v, %d octets, want reason %q", what, r, len(o.Code), c.reason)
		}
	}
}

func hexHash(b []byte) string { return hex.EncodeToString(nslp.HashOf(b)) }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestOwnAddresses: nothing is fetched from the machine itself.
func TestOwnAddresses(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	l := leasesOf(t, noDatapath{})
	if _, err := l.fetcher().get(t.Context(), web.URL, 10); err == nil || !strings.Contains(err.Error(), "an address of this machine") {
		t.Errorf("from %s: %v", web.URL, err)
	}
}

type noDatapath struct{ onpath.Datapath }

// leasesOf are those of a node with a data path.
func leasesOf(t *testing.T, d onpath.Datapath) *Leases {
	t.Helper()
	p := &base.Part{Node: "n", Dir: base.Dir(t.TempDir()), Datapath: d, Log: slog.New(slog.DiscardHandler), Clock: base.WallClock{}}
	p.Begin(t.Context())
	return New(p, &machine.Machine{}, punt.New(), Options{})
}
