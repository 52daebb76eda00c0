package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/control/look"
	firewall "github.com/onpath/onpath/functions/ebpf-firewall"
	ratelimit "github.com/onpath/onpath/functions/ebpf-ratelimit"
	"github.com/onpath/onpath/internal/sealed"
	"github.com/onpath/onpath/runtime/inline"
	"github.com/onpath/onpath/sdk"
	"github.com/onpath/onpath/store/mem"
)

// controller is a Controller that refuses chains called "bad".
type controller struct {
	begins   chan<- string // told of what does not end
	mu       sync.Mutex
	hub      *session.Hub
	asked    onpath.TraceRequest
	proved   onpath.VerifyRequest
	misled   error                 // what VerifyChange answers
	told     map[onpath.Key]string // reason and message of the last event
	needed   onpath.Key            // must not be deleted
	barred   onpath.Key            // must not be written
	finds    error                 // what Check answers
	notes    []string              // what it says of what is possible
	pushed   []onpath.Key          // chains to which values were reported
	accepted []string              // nodes
	planned  map[string][]string   // repositories by node; nil: all
}

// refuse refuses to write an object from now on.
func (c *controller) refuse(k onpath.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.barred = k
}

func (c *controller) PushMetric(_ context.Context, k onpath.Key, v float64, _ time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v > onpath.MaxMetric {
		return onpath.Errorf(onpath.CodeInvalid, "the value %g is absurd", v)
	}
	c.pushed = append(c.pushed, k)
	return nil
}

func (c *controller) AcceptNode(_ context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted = append(c.accepted, name)
	return nil
}

func (c *controller) NodeMayPull(node, repository string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.planned == nil || slices.Contains(c.planned[node], repository)
}

func (c *controller) Tell(about onpath.Key, reason, message string, _ bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told = map[onpath.Key]string{}
	}
	c.told[about] = reason + ": " + message
}

func (c *controller) heard(about onpath.Key) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told[about]
}

func (c *controller) Check(_ context.Context, changes []onpath.Change, _ bool) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finds != nil {
		return nil, c.finds
	}
	for _, x := range changes {
		if x.Object != nil && x.Key == c.barred {
			return nil, onpath.Errors{{Code: onpath.CodeInvalid, Object: x.Key.String(), Message: "there is no function f1"}}
		}
		if x.Object != nil && x.Key.Name == "bad" {
			return nil, onpath.Errors{{Code: onpath.CodeInvalid, Object: x.Key.String(), Field: "spec.to", Message: "overlaps", Remedy: "give it another priority"}}
		}
		if x.Object == nil && x.Key == c.needed {
			return nil, onpath.Errors{{Code: onpath.CodeInvalid, Object: x.Key.String(), Message: "it is used by chain a/web"}}
		}
	}
	return c.notes, nil
}

func (c *controller) Preview(_ context.Context, changes []onpath.Change) (*onpath.Preview, error) {
	return &onpath.Preview{Rules: []onpath.RulesPreview{{Node: "n1", Added: len(changes)}}}, nil
}

func (c *controller) WatchFlow(ctx context.Context, r onpath.WatchRequest) (*onpath.FlowWatch, error) {
	if r.Gateway == "slow" {
		c.begins <- "watchflow"
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return &onpath.FlowWatch{Tuple: r.Tuple}, nil
}

func (c *controller) Verify(_ context.Context, r onpath.VerifyRequest) (*onpath.Verification, error) {
	c.proved = r
	return &onpath.Verification{Verdict: onpath.VerdictProved, Live: r.Live, Chains: []onpath.ChainVerification{}}, nil
}

func (c *controller) VerifyChange(context.Context, []onpath.Change) error { return c.misled }

func (c *controller) Trace(_ context.Context, r onpath.TraceRequest) (*onpath.Trace, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = r
	return &onpath.Trace{Tuple: r.Tuple, Chains: []string{"acme/web"}}, nil
}

func (c *controller) Counters(ctx context.Context, node string) (*onpath.Counters, error) {
	return look.Counters(ctx, c.hub.Call, node)
}

func (c *controller) Ready(context.Context) error { return nil }

// nodes is a session listener that only counts.
type nodes struct{ connected, gone chan string }

func (n *nodes) NodeConnected(h onpath.NodeHello)   { n.connected <- h.Node }
func (n *nodes) NodeReported(onpath.NodeReport)     {}
func (n *nodes) NodeEvent(string, onpath.NodeEvent) {}
func (n *nodes) NodeGone(name, _ string)            { n.gone <- name }

// world is a server on a unix socket and on TLS.
type world struct {
	t          *testing.T
	dir        string
	store      *mem.Store
	wrapped    onpath.Store // store, or what a test put before it
	controller *controller
	nodes      *nodes
	hub        *session.Hub
	address    string
	clock      *clock
	passed     int         // how often pass was called
	asked      chan string // what an endless node, and a slow controller, is asked
	operator   *client.Client
	stop       func()
	cut        func() // stops the server, and leaves the sessions for stop
}

// clock is a time that tests move.
type clock struct {
	mu     sync.Mutex
	offset time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.offset)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), clock: &clock{}, asked: make(chan string, 100)}
	w.controller = &controller{begins: w.asked}
	w.store = mem.New(mem.Options{Clock: w.clock.now, Keep: 1000})
	w.wrapped = w.store
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start starts a server over what an earlier one left.
func (w *world) start() {
	w.t.Helper()
	fatal := func(err error) {
		if err != nil {
			w.t.Fatal(err)
		}
	}
	authority, err := auth.OpenAuthority(filepath.Join(w.dir, "auth"), w.clock.now)
	fatal(err)
	w.nodes = &nodes{make(chan string, 10), make(chan string, 10)}
	w.hub = session.NewHub(slog.New(slog.DiscardHandler), w.clock.now)
	w.hub.Attach(w.nodes)
	w.controller.hub = w.hub
	local, err := api.ListenUnix(filepath.Join(w.dir, "server.sock"))
	fatal(err)
	if w.address == "" {
		w.address = "127.0.0.1:0"
	}
	remote, err := net.Listen("tcp", w.address)
	fatal(err)
	w.address = remote.Addr().String()
	s, err := api.New(api.Options{
		Store: w.wrapped, Controller: w.controller, Admission: w.controller, Hub: w.hub, Authority: authority, Dir: w.dir,
		Address: w.address, Version: "test", Clock: w.clock.now,
		Sealed: sealed.New(func() [][]byte { return [][]byte{[]byte("k")} }),
		SecretsPlanned: func(node, tenant, instance string) map[string]onpath.SecretKey {
			if node == "n1" && tenant == "acme" && instance == "web-1" {
				return map[string]onpath.SecretKey{"pass": "db/password"}
			}
			return nil
		},
		WebhookState: func(h *onpath.Webhook) onpath.WebhookState {
			return onpath.WebhookState{Secret: "whsec_" + h.Metadata.UID}
		},
		Functions: map[onpath.FunctionKind]onpath.FunctionChecker{onpath.EBPFFunction: inline.Checker{Functions: []sdk.Function{firewall.Function, ratelimit.Function}}},
	})
	fatal(err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	wg.Go(func() { _ = s.ServeUnix(ctx, local) })
	wg.Go(func() { _ = s.ServeTLS(ctx, remote) })
	w.operator = client.Unix(filepath.Join(w.dir, "server.sock"))
	w.cut = func() { cancel(); wg.Wait() }
	w.stop = sync.OnceFunc(func() {
		w.operator.Close()
		w.hub.Close()
		cancel()
		wg.Wait()
	})
}

// join makes a token and redeems it.
func (w *world) join(r auth.TokenRequest, name string) (*client.Client, error) {
	w.t.Helper()
	if r.Tenant != "" {
		w.tenant(r.Tenant)
	}
	token, err := w.operator.CreateToken(w.t.Context(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := client.Join(w.t.Context(), token.Word, name, filepath.Join(w.t.TempDir(), "cert"))
	if c != nil {
		w.t.Cleanup(c.Close)
	}
	return c, err
}

// tenant sees to it that there is such a tenant.
func (w *world) tenant(name string) {
	w.t.Helper()
	o, _ := onpath.New(onpath.KindTenant)
	o.Meta().Name = name
	_, err := w.store.Write(w.t.Context(), onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(o), Object: o}}})
	if err != nil && onpath.CodeOf(err) != onpath.CodeConflict { // it is there
		w.t.Fatal(err)
	}
}

func (w *world) user(tenant string) *client.Client {
	w.t.Helper()
	c, err := w.join(auth.TokenRequest{Role: auth.RoleUser, Name: "alice", Tenant: tenant}, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func hosts(tenant, name, address string) *onpath.Hosts {
	o, _ := onpath.New(onpath.KindHosts)
	h := o.(*onpath.Hosts)
	h.Metadata.Tenant, h.Metadata.Name = tenant, name
	p, err := onpath.ParsePrefix(address)
	if err != nil {
		panic(err)
	}
	h.Spec.Addresses = []onpath.Prefix{{Prefix: p}}
	return h
}

func cloudlet(name string) *onpath.Cloudlet {
	o, _ := onpath.New(onpath.KindCloudlet)
	o.Meta().Name = name
	return o.(*onpath.Cloudlet)
}

func wantCode(t *testing.T, err error, code onpath.Code) {
	t.Helper()
	if got := onpath.CodeOf(err); got != code {
		t.Fatalf("got %q (%v), want %q", got, err, code)
	}
}

func TestObjects(t *testing.T) {
	w := newWorld(t)
	ctx, c := t.Context(), w.operator
	h := hosts("acme", "site", "198.51.100.10")
	_, err := c.Get(ctx, onpath.KeyOf(h))
	wantCode(t, err, onpath.CodeNotFound)
	o, err := c.Put(ctx, h)
	if err != nil || o.Meta().Version == 0 || o.Meta().UID == "" || o.Meta().Generation != 1 {
		t.Fatalf("%+v, %v", o, err)
	}
	read := o.(*onpath.Hosts)
	read.Spec.Addresses = hosts("acme", "site", "198.51.100.11").Spec.Addresses
	if o, err = c.Put(ctx, read); err != nil || o.Meta().Generation != 2 {
		t.Fatalf("%+v, %v", o, err)
	}
	_, err = c.Put(ctx, read) // its version is the first
	wantCode(t, err, onpath.CodeConflict)
	if _, err := c.Put(ctx, cloudlet("fra1")); err != nil {
		t.Fatal(err)
	}
	list, revision, err := c.List(ctx, onpath.KindHosts, "acme")
	if err != nil || len(list) != 1 || revision == 0 {
		t.Fatalf("%v at %d, %v", list, revision, err)
	}
	if err := c.Delete(ctx, onpath.KeyOf(h), false); err != nil {
		t.Fatal(err)
	}
	wantCode(t, c.Delete(ctx, onpath.KeyOf(h), false), onpath.CodeNotFound)
	o, _ = onpath.New(onpath.KindInstance)
	o.Meta().Tenant, o.Meta().Name = "acme", "x"
	_, err = c.Apply(ctx, []onpath.Object{o}, client.ApplyOptions{})
	wantCode(t, err, onpath.CodeForbidden)
}

// raw sends a request as it is over the unix socket.
func (w *world) raw(method, path, body string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	status, answer, _ := w.send(r)
	return status, answer
}

// send gives the version that the answer says, too.
func (w *world) send(r *http.Request) (status int, answer, tag string) {
	w.t.Helper()
	a, err := w.operator.HTTP().Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return a.StatusCode, string(b), a.Header.Get("ETag")
}

func TestBadRequests(t *testing.T) {
	w := newWorld(t)
	head := `{"apiVersion":"onpath/v1alpha1","kind":"Hosts","metadata":{"name":"x","tenant":"a"}`
	cases := []struct{ name, method, path, body, want string }{
		{"not JSON", "PUT", "/v1/hosts/a/x", "{", "broken off or no JSON"},
		{"unknown field", "PUT", "/v1/hosts/a/x", head + `,"spec":{"adresses":["10.0.0.1"]}}`, "adresses"},
		{"wrong version", "PUT", "/v1/hosts/a/x", `{"apiVersion":"v9","kind":"Hosts"}`, "onpath/v1alpha1"},
		{"unknown kind", "PUT", "/v1/hosts/a/x", `{"apiVersion":"onpath/v1alpha1","kind":"Hots"}`, "Hots"},
		{"other object", "PUT", "/v1/hosts/a/y", head + `,"spec":{"addresses":["10.0.0.1"]}}`, "hosts a/y"},
		{"not valid", "PUT", "/v1/hosts/a/x", head + `,"spec":{}}`, "hosts a/x"},
		{"two objects", "PUT", "/v1/hosts/a/x", head + `,"spec":{"addresses":["10.0.0.1"]}}{}`, ""},
		{"too large", "PUT", "/v1/hosts/a/x", strings.Repeat("x", 5<<20), ""},
		{"wrong address", "GET", "/v1/flows?src=nowhere", "", "nowhere"},
		{"wrong kind", "GET", "/v1/watch?kinds=chain,hots", "", "hots"},
		{"wrong parameter", "GET", "/v1/chains?tennant=a", "", "tennant"},
		{"mixed families", "GET", "/v1/trace?src=10.0.0.1&dst=2001:db8::1&protocol=6", "", "family"},
		{"no such path", "GET", "/v1/chians", "", "/v1/chians"},
		{"exec without upgrade", "GET", "/v1/instances/a/x/exec?command=ls", "", "Upgrade"},
		{"unknown field beside objects", "POST", "/v1/apply", `{"dry_run":true,"objects":[` + head + `,"spec":{"addresses":["10.0.0.1"]}}]}`, "dry_run"},
		{"object without room for a status", "PUT", "/v1/deployments/a/x", `{"apiVersion":"onpath/v1alpha1","kind":"Deployment",` +
			`"metadata":{"name":"x","tenant":"a"},"spec":{"function":"f","env":{` + envs(32) + `}}}`, "983040"},
		{"confirm in a microsecond", "POST", "/v1/apply", `{"confirm":"1us"}`, "1s to 24h"},
	}
	for _, c := range cases {
		code, body := w.raw(c.method, c.path, c.body)
		var p struct{ Errors onpath.Errors }
		if err := json.Unmarshal([]byte(body), &p); err != nil || len(p.Errors) == 0 || code < 400 || code >= 500 {
			t.Errorf("%s: %d %s", c.name, code, body)
		} else if !strings.Contains(p.Errors.Error(), c.want) {
			t.Errorf("%s: %q does not say %q", c.name, p.Errors.Error(), c.want)
		}
	}
	if list, _, _ := w.store.List(t.Context(), onpath.KindHosts, ""); len(list) != 0 {
		t.Errorf("%d bad objects were stored", len(list))
	}
}

func TestOpen(t *testing.T) {
	w := newWorld(t)
	for path, want := range map[string]string{
		"/readyz": `"ready":true`, "/version": `"version":"test"`, "/metrics": "onpath_nodes_connected 0",
		"/openapi.yaml": "openapi: 3.1.0", "/healthz": "",
	} {
		if code, body := w.raw("GET", path, ""); code >= 300 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
}

// TestOpenAPI checks that the description names every path, and that every
// reference in it leads somewhere.
func TestOpenAPI(t *testing.T) {
	w := newWorld(t)
	_, body := w.raw("GET", "/openapi.json", "")
	var doc struct {
		OpenAPI    string                                `json:"openapi"`
		Paths      map[string]map[string]json.RawMessage `json:"paths"`
		Components struct {
			Schemas         map[string]json.RawMessage `json:"schemas"`
			SecuritySchemes map[string]json.RawMessage `json:"securitySchemes"`
		} `json:"components"`
		Security []map[string][]string `json:"security"`
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("OpenAPI %q", doc.OpenAPI)
	}
	for _, want := range []string{"get /v1/chains", "put /v1/chains/{tenant}/{name}", "delete /v1/nodes/{name}", "post /v1/apply",
		"get /v1/watch", "get /v1/instances/{tenant}/{name}/logs", "post /v1/join", "get /v1/counters", "get /v1/trace"} {
		method, path, _ := strings.Cut(want, " ")
		if doc.Paths[path][method] == nil {
			t.Errorf("%s is not described", want)
		}
	}
	if doc.Paths["/v1/events/{tenant}/{name}"]["put"] != nil {
		t.Error("events can be written")
	}
	for path, item := range doc.Paths {
		if put := string(item["put"]); put != "" && !strings.Contains(put, `"requestBody":{"content":{"application/json":{"schema":{"$ref":`) {
			t.Errorf("put %s does not say what its body is: %.400s", path, put)
		}
	}
	for _, way := range doc.Security {
		for scheme := range way {
			if doc.Components.SecuritySchemes[scheme] == nil {
				t.Errorf("the way to sign in %q is not described", scheme)
			}
		}
	}
	if len(doc.Security) == 0 || len(doc.Components.SecuritySchemes) < 2 {
		t.Errorf("the ways to sign in are %v", doc.Security)
	}
	const ref = `"$ref":"#/components/schemas/`
	for rest := body; ; {
		i := strings.Index(rest, ref)
		if i < 0 {
			break
		}
		rest = rest[i+len(ref):]
		if name := rest[:strings.Index(rest, `"`)]; doc.Components.Schemas[name] == nil {
			t.Errorf("a reference leads to %s, which is not there", name)
		}
	}
	if !bytes.Contains(doc.Components.Schemas["ChainSpec"], []byte(`"any"`)) {
		t.Errorf("the ends of a chain are described as %s", doc.Components.Schemas["ChainSpec"])
	}
	if again, err := w.operator.HTTP().Get("http://x/openapi.json"); err == nil {
		b, _ := io.ReadAll(again.Body)
		_ = again.Body.Close()
		if string(b) != body {
			t.Error("the description is not the same twice")
		}
	}
}

func TestNoServer(t *testing.T) {
	c := client.Unix(filepath.Join(t.TempDir(), "none.sock"))
	_, _, err := c.List(t.Context(), onpath.KindChain, "")
	wantCode(t, err, onpath.CodeUnavailable)
	if !strings.Contains(err.Error(), "no onpath server answers at") || !strings.Contains(err.Error(), "onpath up") {
		t.Errorf("got %v", err)
	}
}

func TestSocketIsTaken(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.dir, "server.sock")
	_, err := api.ListenUnix(path)
	wantCode(t, err, onpath.CodeExists)
	w.stop()
	l, err := net.Listen("unix", path) // as a server that was killed leaves it
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	again, err := api.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// envs are n variables of 31,000 bytes.
func envs(n int) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("%q:%q", fmt.Sprint("V", i), strings.Repeat("x", 31000)))
	}
	return strings.Join(list, ",")
}
