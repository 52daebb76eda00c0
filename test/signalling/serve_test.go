package signalling

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/funcbuild"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/signalling"
	"github.com/onpath/onpath/signal/nslp"
)

// pools are where servers get their addresses from.
const pools = "server: {publicPools: [203.0.113.0/28]}\n"

// TestServed: a module that came by SETUP serves HTTP and datagrams at an address of each
// node, beside one that is on the way of packets already; the answer tells where, trace and
// the list of leases as well. With REMOVE nobody answers there any more.
func TestServed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	code, err := funcbuild.Compile(ctx, "../e2e/testdata/modules/serve.c", funcbuild.ToWasm)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := setUpIn(ctx, t, "lab", onOneWay)
	w.forging = code
	w.operate(ctx, "50%, servers: 1", "50%, servers: 1")
	w.routes(ctx, "gw1 203.0.113.0/28 via 10.12.0.2", "gw2 203.0.113.0/28 via 10.12.0.1")
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent")
	w.ask(ctx, v4, w.setup(v4, "monitor"), "gw1 installed, gw2 installed")
	if back := w.pass(v4, 5); back != 5 {
		t.Errorf("of 5 datagrams %d are answered", back)
	}

	m := w.setup(v4, "web")
	m.URL, m.Hash = strings.Replace(m.URL, "module", "forge", 1), nslp.HashOf(code)
	m.FilterPort, m.FilterProtocol, m.FilterTo, m.Dependencies = 0, "", nil, []string{"http/1"}
	m.Serve = []onpath.ServedPort{{Protocol: "tcp", Port: 80}, {Protocol: "udp", Port: 7}}
	w.ask(ctx, v4, m, "gw1 installed, gw2 installed")
	at := w.servers(ctx, "web")
	if len(at) != 4 {
		t.Fatalf("PROBE tells of servers %v", at)
	}
	for _, s := range at {
		w.answers(ctx, s, true)
	}
	out, err := w.Onpath(ctx, "trace", v4.user.String(), at[0].address.Addr().String(), "-p", "tcp/80")
	if err != nil || !strings.Contains(string(out), "voice/leases") || !strings.Contains(string(out), "web until") {
		t.Errorf("trace: %v\n%s", err, out)
	}
	var list []onpath.Lease
	err = w.Get(ctx, &list, "leases", "--tenant", "voice")
	i := slices.IndexFunc(list, func(l onpath.Lease) bool { return l.Spec.Module == "web" })
	if err != nil || i < 0 || len(list[i].Spec.Servers()) != 2 {
		t.Errorf("leases: %+v, %v", list, err)
	}
	if back := w.pass(v4, 5); back != 5 {
		t.Errorf("beside the server %d of 5 datagrams are answered", back)
	}
	if out, err := w.Onpath(ctx, "verify"); err != nil {
		t.Errorf("verify: %v\n%s", err, out)
	}

	w.ask(ctx, v4, &nslp.Message{Type: nslp.Remove, Module: "web"}, "gw1 removed, gw2 removed")
	if left := w.servers(ctx, "web"); len(left) != 0 {
		t.Errorf("after REMOVE PROBE tells of servers %v", left)
	}
	for _, s := range at {
		w.answers(ctx, s, false)
	}
	if back := w.pass(v4, 5); back != 5 {
		t.Errorf("behind the server %d of 5 datagrams are answered", back)
	}
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Remove, Module: "monitor"}, "gw1 removed, gw2 removed")
	w.gone(ctx)
}

// TestServedByPair: the other gateway of a pair leads what comes to it for a server to the engine,
// and back, also with the operator's server dead.
func TestServedByPair(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; plan has the same for what the two gateways are told")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	code, err := os.ReadFile("../../examples/trust/hello.wasm")
	if err != nil {
		t.Fatal(err)
	}
	w := setUpIn(ctx, t, "routes", uplinks{"gw1": {"core", "east", "south"}, "gw2": {"west", "access"}, "gw3": {"north", "access"}})
	w.forging, w.with = code, map[string]string{"gw3": "gw2"}
	w.operate(ctx, "50%", "50%, servers: 1", "50%, servers: 1")
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent")
	m := w.setup(v4, "web")
	m.URL, m.Hash = strings.Replace(m.URL, "module", "forge", 1), nslp.HashOf(code)
	m.FilterPort, m.FilterProtocol, m.FilterTo, m.Dependencies = 0, "", nil, []string{"http/1"}
	w.ask(ctx, v4, m, "gw1 refused NoServer, gw2 installed")
	at := w.servers(ctx, "web")
	if len(at) != 1 {
		t.Fatalf("PROBE tells of servers %v", at)
	}
	if err := w.Kill("server", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, by := range []string{"gw2", "gw3", "gw2"} {
		w.route(ctx, by)
		var said string
		err := w.WaitFor(ctx, "an answer by "+by, time.Minute, func() (ok bool, err error) {
			err = netnsrun.Do(w.Lab.NetNS("user"), func() error { said, err = askServer(at[0]); return err })
			return err == nil && said != "", nil
		})
		if err != nil {
			t.Errorf("by %s: %v", by, err)
		}
	}
}

// routes adds routes: HOST PREFIX via ADDRESS.
func (w *world) routes(ctx context.Context, list ...string) {
	w.t.Helper()
	for _, r := range list {
		host, route, _ := strings.Cut(r, " ")
		if out, err := w.Exec(ctx, host, append([]string{"ip", "route", "replace"}, strings.Fields(route)...)...); err != nil {
			w.t.Fatalf("%s: %v: %s", r, err, out)
		}
	}
}

// servers are where PROBE says that a module of the publisher's serves.
func (w *world) servers(ctx context.Context, module string) (out []server) {
	w.t.Helper()
	err := netnsrun.Do(w.Lab.NetNS("publisher"), func() error {
		o := signalling.Options{Toward: v4.user, Key: publisherKey, Timeout: 10 * time.Second}
		r, err := signalling.Request(ctx, &nslp.Message{Type: nslp.Probe}, o)
		if err != nil {
			return err
		}
		for _, e := range r.Stack {
			for _, s := range e.Servers {
				var name, protocol, address string
				if _, err := fmt.Sscan(s, &name, &protocol, &address); err != nil {
					return err
				}
				a, err := netip.ParseAddrPort(address)
				if err != nil || name != module {
					return fmt.Errorf("%q: %w", s, err)
				}
				out = append(out, server{protocol, a})
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// server is where a module serves.
type server struct {
	protocol string
	address  netip.AddrPort
}

func (s server) String() string { return s.protocol + " " + s.address.String() }

// answers waits until the user gets answers from a server, or none.
func (w *world) answers(ctx context.Context, s server, yes bool) {
	w.t.Helper()
	var said string
	err := w.WaitFor(ctx, s.String(), time.Minute, func() (ok bool, err error) {
		err = netnsrun.Do(w.Lab.NetNS("user"), func() error { said, err = askServer(s); return err })
		return (err == nil) == yes, nil
	})
	if err != nil || yes && said != "/path" {
		w.t.Errorf("the user asks %s and gets %q, %v; answers: %t", s, said, err, yes)
	}
}

func askServer(s server) (string, error) {
	if s.protocol == "tcp" {
		c := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialHere(s)}}
		r, err := c.Get("http://" + s.address.String() + "/path")
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return string(b), err
	}
	c, err := dialHere(s)(context.Background(), "udp", "")
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte("/path"))
	b := make([]byte, 64)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// dialHere connects from the network namespace of whoever calls it, not of whoever uses it.
func dialHere(s server) func(context.Context, string, string) (net.Conn, error) {
	c, err := net.DialTimeout(s.protocol, s.address.String(), 2*time.Second)
	return func(context.Context, string, string) (net.Conn, error) { return c, err }
}
