package e2e

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"
)

const ownCache = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: own-cache}
spec:
  container:
    image: IMAGES/cache
    attach: routed
    capabilities: [NET_ADMIN, NET_RAW]
    addresses: private
    outbound: nat
    env: {SOURCE: own}
  state: terminates
  packets: originate
  resources: {cpu: "1", memory: 256Mi}
  health: {tcp: 3129, every: 500ms}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: own-cache}
spec: {function: own-cache, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: own}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: tcp, destinationPorts: ["80"]}]
  through:
  - {deployment: own-cache, lost: reset}
`

// TestOwnAddress: squid asks the origin with an address of its own, which the gateway
// translates, and answers its clients with the origin's; what it has it does not ask for.
func TestOwnAddress(t *testing.T) {
	idle(t)
	ctx := need(t, 3*time.Minute)
	var mu sync.Mutex
	var asked []netip.Addr
	serveWeb(t, "origin", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, netip.MustParseAddrPort(r.RemoteAddr).Addr().Unmap())
		mu.Unlock()
		w.Header().Set("Cache-Control", "max-age=600")
		_, _ = io.WriteString(w, "page "+r.URL.Path)
	})
	apply(ctx, t, strings.ReplaceAll(ownCache, "IMAGES", images(t, "cache")))
	active(ctx, t, "own")
	ready(ctx, t, 1)
	for n, want := range []string{"MISS", "HIT", "HIT"} {
		body, hit, err := fromClient(ctx, "http://10.9.0.2/a")
		if err != nil || body != "page /a" {
			t.Fatalf("request %d: %q, %v", n, body, err)
		}
		if !strings.HasPrefix(hit, want) {
			t.Errorf("request %d: X-Cache is %q, must be a %s", n, hit, want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 1 || asked[0] == netip.MustParseAddr("10.1.0.2") || asked[0].IsLinkLocalUnicast() {
		t.Errorf("the origin was asked by %v, must be once and not by the client", asked)
	}
	t.Logf("the origin was asked by %v", asked)
}

// fromClient fetches a page as the client does, by a connection of its own.
func fromClient(ctx context.Context, url string) (body, hit string, err error) {
	return fetch(ctx, testbed.Lab.NetNS("client"), url)
}

// fetch fetches a page from a network namespace.
func fetch(ctx context.Context, ns, url string) (body, hit string, err error) {
	dial := func(ctx context.Context, network, to string) (c net.Conn, err error) {
		err = doIn(ns, func() (err error) {
			c, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, to)
			return err
		})
		return c, err
	}
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", "", err
	}
	answer, err := c.Do(r)
	if err != nil {
		return "", "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return string(b), answer.Header.Get("X-Cache"), err
}
