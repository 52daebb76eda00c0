package publish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"time"
)

// ModulePath is where the module's code is, at the address for nodes.
const ModulePath = "/.well-known/onpath-module.wasm"

// CDN stands in front of a web origin. It hands clients' requests on, and sends the clients of a
// crowd to the module that is nearest to them.
type CDN struct {
	*Daemon
	Origin *url.URL
	// Listen is where clients come, Nodes where nodes and modules fetch, who are never sent on.
	Listen, Nodes string
	Code          []byte
	// Life is how long a client may remember where it was sent.
	Life time.Duration
}

// Run serves until ctx ends.
func (c *CDN) Run(ctx context.Context) error {
	proxy := httputil.NewSingleHostReverseProxy(c.Origin)
	proxy.FlushInterval = -1 // live streams
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	once := loopGuard(proxy)
	fetched := http.NewServeMux()
	fetched.HandleFunc(ModulePath, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(c.Code) })
	fetched.Handle("/", proxy)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for address, h := range map[string]http.Handler{c.Listen: once(c.redirect(proxy)), c.Nodes: once(fetched)} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
		defer s.Close()
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				cancel(err)
			}
		}()
	}
	c.say("clients come to %s, modules to %s, by plain HTTP alone; a crowd is %d requests in %s", c.Listen, c.Nodes,
		c.c.Threshold, c.c.Window)
	c.Daemon.Run(ctx)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// redirect sends clients to where they are served best.
func (c *CDN) redirect(here http.Handler) http.Handler {
	life := fmt.Sprintf("private, max-age=%d", int(c.Life/time.Second))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || r.Method != http.MethodGet && r.Method != http.MethodHead {
			here.ServeHTTP(w, r)
			return
		}
		at, ok := c.Request(from.Addr())
		if !ok {
			here.ServeHTTP(w, r)
			return
		}
		host := at.String()
		if at.Port() == 80 {
			host = hostOf(at.Addr())
		}
		w.Header().Set("Cache-Control", life)
		http.Redirect(w, r, "http://"+host+r.URL.RequestURI(), http.StatusFound)
	})
}

func hostOf(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}
