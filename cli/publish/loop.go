package publish

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// IsLocal reports whether an address is one of this machine.
func IsLocal(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	list, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(list, func(l net.Addr) bool {
		p, err := netip.ParsePrefix(l.String())
		return err == nil && p.Addr() == a.Unmap().WithZone("")
	})
}

// Serves reports whether who listens at a place, as net.Listen has it, takes what comes to an
// address of this machine and a port.
func Serves(listen string, a netip.Addr, port uint16) bool {
	l, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil || l.Port != int(port) {
		return false
	}
	at, _ := netip.AddrFromSlice(l.IP)
	at = at.Unmap()
	return !at.IsValid() || at.IsUnspecified() || at == a.Unmap()
}

// LeadsTo reports whether a URL leads to one of the places where this machine listens.
func LeadsTo(ctx context.Context, u *url.URL, listen ...string) bool {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addresses, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname()) // a site may come up later
	return slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		a = a.Unmap()
		here := IsLocal(a) || a.IsUnspecified()
		return here && slices.ContainsFunc(listen, func(l string) bool { return Serves(l, a, uint16(n)) })
	})
}

// loopGuard has what a proxy hands on say who handed it on (Via), and gives what refuses a
// request that this proxy handed on before.
func loopGuard(proxy *httputil.ReverseProxy) func(http.Handler) http.Handler {
	name := "onpath-" + rand.Text()
	direct := proxy.Director
	proxy.Director = func(r *http.Request) {
		direct(r)
		r.Header.Add("Via", "1.1 "+name)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(strings.Join(r.Header.Values("Via"), ","), name) {
				http.Error(w, "the request came back to the publisher that handed it on: its --origin leads to itself",
					http.StatusLoopDetected)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
