// Package attack_test holds what strangers, tenants and nodes may try against a server, as
// one table: each is refused, and what was refused at the door is in the log.
package attack_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/control"
	"github.com/onpath/onpath/control/notify"
	"github.com/onpath/onpath/control/translog"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/store/mem"
)

// server is a whole one, but for nodes, with a shop and a neighbour who mean well.
type server struct {
	t        *testing.T
	address  string
	operator *client.Client
	log      *translog.Log
	entries  *translog.Store
	clock    *clock
	told     *notify.Keeper
}

type clock struct {
	mu   sync.Mutex
	lead time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.lead)
}

func newServer(t *testing.T, change ...func(*api.Options)) *server {
	t.Helper()
	return newServerOn(t, nil, change...)
}

// newServerOn is one with a store, which is closed in the end; nil: one in memory.
func newServerOn(t *testing.T, stored onpath.Store, change ...func(*api.Options)) *server {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	s := &server{t: t, clock: &clock{}}
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	if stored == nil {
		stored = mem.New(mem.Options{Clock: s.clock.now})
	}
	s.entries, err = translog.NewStore(ctx, stored, s.clock.now, []byte("salt"))
	must(err)
	s.log, err = translog.Open(filepath.Join(dir, "log"))
	must(err)
	discard := slog.New(slog.DiscardHandler)
	s.told, err = notify.Open(filepath.Join(dir, "notifications"), discard, s.clock.now,
		func(string) (since time.Time, known bool, err error) { return since, true, nil })
	must(err)
	hub := session.NewHub(discard, s.clock.now)
	c := control.New(control.Options{Store: s.entries, Hub: hub, Settings: plan.Settings{Secret: []byte("k")}, Wait: time.Millisecond})
	authority, err := auth.OpenAuthority(filepath.Join(dir, "auth"), s.clock.now)
	must(err)
	local, err := api.ListenUnix(filepath.Join(dir, "server.sock"))
	must(err)
	remote, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	s.address = remote.Addr().String()
	options := api.Options{Store: s.entries, Log: translog.Public{Log: s.log, Entries: s.entries}, Controller: c, Admission: c,
		Pool: c.Pool(), Hub: hub, Notifications: s.told, Authority: authority, Dir: dir, Address: s.address, Version: "test", Clock: s.clock.now,
		Metrics: prometheus.NewRegistry()}
	for _, f := range change {
		f(&options)
	}
	a, err := api.New(options)
	must(err)
	var wg sync.WaitGroup
	for _, task := range []func(){
		func() { _ = c.Run(ctx) }, func() { a.Run(ctx) }, func() { _ = a.ServeUnix(ctx, local) }, func() { _ = a.ServeTLS(ctx, remote) },
		func() { _ = s.log.Run(ctx, s.entries, discard) },
	} {
		wg.Go(task)
	}
	<-c.Loaded()
	hub.Attach(c)
	s.operator = client.Unix(filepath.Join(dir, "server.sock"))
	t.Cleanup(func() {
		s.operator.Close()
		hub.Close()
		cancel()
		wg.Wait()
		must(s.log.Close())
		must(stored.Close())
	})
	s.settle()
	return s
}

// settle makes the tenants: the shop has an address, mallory has none.
func (s *server) settle() {
	tenant := func(name string, addresses ...string) *onpath.Tenant {
		t := &onpath.Tenant{Metadata: onpath.Metadata{Name: name}}
		for _, a := range addresses {
			t.Spec.Addresses = append(t.Spec.Addresses, onpath.Prefix{Prefix: netip.MustParsePrefix(a)})
		}
		return t
	}
	function := &onpath.Function{Metadata: onpath.Metadata{Name: "fw", Tenant: "shop"}}
	function.Spec.Container = &onpath.ContainerSpec{Image: "registry.example/fw:1"}
	own := onpath.Clone(tagged(function))
	own.Metadata.Tenant = "evil"
	hosts := &onpath.Hosts{Metadata: onpath.Metadata{Name: "site", Tenant: "shop"}}
	hosts.Spec.Addresses = []onpath.Prefix{{Prefix: netip.MustParsePrefix("203.0.113.10/32")}}
	n := 1
	chain := &onpath.Chain{Metadata: onpath.Metadata{Name: "web", Tenant: "shop"}, Spec: onpath.ChainSpec{From: onpath.Endpoints{Any: true},
		To: onpath.Endpoints{Hosts: "site"}, Through: []onpath.Element{{Function: "fw", Instances: &n}}}}
	node := &onpath.Node{Metadata: onpath.Metadata{Name: "gw1"}, Spec: onpath.NodeSpec{Cloudlet: "fra1"}}
	node.Spec.Underlay.Address = netip.MustParseAddr("192.0.2.7")
	limited := tenant("evil")
	limited.Spec.Quota = &onpath.Quota{Chains: 1, Claims: 2, Instances: 3}
	for _, o := range []onpath.Object{tenant("shop", "203.0.113.10/32"), limited, &onpath.Cloudlet{Metadata: onpath.Metadata{Name: "fra1"}},
		node, hosts, function, own, chain} {
		if _, err := s.operator.Put(s.t.Context(), tagged(o)); err != nil {
			s.t.Fatal(err)
		}
	}
}

// tagged fills in what a file says first.
func tagged[T onpath.Object](o T) T {
	_ = o.Validate()
	return o
}

// somebody is who sends requests.
type somebody struct {
	http   *http.Client
	base   string
	bearer string
}

// joined is who has a certificate.
func (s *server) joined(r auth.TokenRequest) *somebody {
	s.t.Helper()
	c := s.join(r, s.t.TempDir())
	return &somebody{http: c.HTTP(), base: c.URL()}
}

// join leaves a certificate in a folder.
func (s *server) join(r auth.TokenRequest, dir string) *client.Client {
	s.t.Helper()
	token, err := s.operator.CreateToken(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	name := r.Name
	if r.Role != auth.RoleNode {
		name = "" // only nodes give one of their own
	}
	c, err := client.Join(s.t.Context(), token.Word, name, dir)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// stranger has no certificate of the server's, or one that he made.
func (s *server) stranger(certs ...tls.Certificate) *somebody {
	return &somebody{base: "https://" + s.address, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}}}}
}

// bearer makes a token, and who shows it.
func (s *server) bearer(r auth.TokenRequest) (who *somebody, id string) {
	s.t.Helper()
	r.API = true
	token, err := s.operator.CreateToken(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	who = s.stranger()
	who.bearer = token.Word
	return who, token.ID
}

// ask sends a request and gives the status; 0: the connection was refused.
func (w *somebody) ask(ctx context.Context, method, path, body string) (int, string) {
	r, err := http.NewRequestWithContext(ctx, method, w.base+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	if w.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+w.bearer)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	a, err := w.http.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer a.Body.Close()
	b, err := io.ReadAll(io.LimitReader(a.Body, 4096))
	if err != nil && !errors.Is(err, io.EOF) {
		return a.StatusCode, err.Error()
	}
	return a.StatusCode, string(b)
}

// askAll reads all of an answer.
func (w *somebody) askAll(ctx context.Context, path string) (int, []byte) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.base+path, nil)
	if err != nil {
		return 0, nil
	}
	a, err := w.http.Do(r)
	if err != nil {
		return 0, nil
	}
	defer a.Body.Close()
	b, _ := io.ReadAll(a.Body)
	return a.StatusCode, b
}
