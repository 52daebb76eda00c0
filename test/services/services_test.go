// Package services_test asks for the name of a service in three cloudlets while each of them
// dies and comes back.
package services_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/demo"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/lab"
)

// What examples/lab/trust.yaml and examples/trust/ set up.
const (
	nameServer = "10.9.0.10"
	name       = "hello.shop.example"
	config     = `server:
  publicPools: [203.0.113.0/28]
  dns: {listen: "10.9.0.10:53", name: ns.operator.example}
`
	examples = "../../examples/"
)

// life of an answer: within it answers move when a cloudlet dies.
const life = 5 * time.Second

// place is a cloudlet of one machine; next is the one that is nearest to it.
type place struct{ node, cloudlet, address, client, subnet, next string }

var places = []place{
	{"gw1", "access", "10.255.0.1", "client", "10.1.0.0/24", "east"}, {"gw2", "east", "10.255.0.2", "client2", "10.2.0.0/24", "access"},
	{"gw3", "west", "10.255.0.3", "client3", "10.3.0.0/24", ""}, // no cloudlet's prefixes have these: they are measured, and both are 20 ms away
}

// world is the network, with the service's addresses by cloudlet.
type world struct {
	*testing.T
	*demo.Testbed
	at map[string]netip.Addr
}

// asked is what one who asks 200 times a second was answered.
type asked struct {
	who string
	demo.NamesResult
	err error
}

// TestNearest: clients behind each of three cloudlets are led to their own, by what they and
// dig ask; when one dies, all answers name another within their life, and none the dead one
// later; when it comes back, they do again.
func TestNearest(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes more than a minute")
	}
	w := setUp(t)
	w.serve()
	for _, p := range places {
		w.leads(p, p.cloudlet)
	}
	for _, p := range places {
		t.Run(p.cloudlet+" dies", func(t *testing.T) {
			w := &world{t, w.Testbed, w.at}
			w.dies(p)
		})
	}
}

func setUp(t *testing.T) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces and eBPF")
	}
	topology, err := lab.ParseFile(examples + "lab/trust.yaml")
	if err != nil {
		t.Fatal(err)
	}
	topology.Name = fmt.Sprintf("services-%d", os.Getpid())
	conf := filepath.Join(t.TempDir(), "onpath.yaml")
	if err := os.WriteFile(conf, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := demo.TestbedSpec{Topology: topology, Bin: testprogram.Path(t), Dir: t.TempDir(), ServerConfig: conf,
		Server: demo.TestbedNode{Host: "server", Address: "10.255.0.10"}}
	for _, p := range places {
		spec.Nodes = append(spec.Nodes, demo.TestbedNode{Name: p.node, Host: p.node, Address: p.address, Cloudlet: p.cloudlet})
	}
	s, err := demo.SetUp(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range []string{"server", "gw1", "gw2", "gw3"} {
				t.Logf("--- end of %s.log\n%s", name, s.Log(name))
			}
		}
		if err := s.TearDown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &world{t, s, map[string]netip.Addr{}}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// serve has the service answer everywhere, and routes lead to it as an operator's would.
func (w *world) serve() {
	ctx := w.Context()
	w.must(w.Apply(ctx, examples+"trust/operator.yaml", examples+"trust/service.yaml"))
	w.serves(len(places))
	core := map[string]string{"access": "10.9.0.1", "east": "10.9.0.12", "west": "10.9.0.13"}
	for _, from := range places {
		for cloudlet, a := range w.at {
			if cloudlet == from.cloudlet {
				continue
			}
			if out, err := w.Exec(ctx, from.node, "ip", "route", "replace", a.String(), "via", core[cloudlet]); err != nil {
				w.Fatalf("%v: %s", err, out)
			}
		}
	}
}

// serves waits until the service answers in so many cloudlets.
func (w *world) serves(many int) {
	w.Helper()
	w.must(w.WaitFor(w.Context(), fmt.Sprintf("the service answers in %d cloudlets", many), 60*time.Second, func() (bool, error) {
		var s onpath.Service
		err := w.Get(w.Context(), &s, "service", "shop/hello")
		n := 0
		for _, p := range s.Status.Cloudlets {
			if p.Serves {
				w.at[p.Cloudlet] = p.Addresses[0]
				n++
			}
		}
		return n == many, err
	}))
}

// leads waits until the client of a place is led to a cloudlet, fetches what answers there,
// and has dig ask for it as a resolver does.
func (w *world) leads(p place, cloudlet string) {
	w.Helper()
	ctx, want := w.Context(), w.at[cloudlet].String()
	w.must(w.WaitFor(ctx, p.client+" is led to "+cloudlet, time.Minute, func() (bool, error) {
		r := w.asks(ctx, p.client, demo.NamesSpec{})
		return r.err == nil && len(r.Answers) == 1 && r.Answers[0].Address == want, nil
	}))
	out, err := w.Exec(ctx, p.client, w.Bin(), "demo", "stats", "http://"+want+"/")
	if err != nil || !strings.Contains(string(out), "hello from") {
		w.Errorf("%s: %v\n%s", p.client, err, out)
	}
	if _, err := exec.LookPath("dig"); err != nil {
		w.Fatal("dig is not installed")
	}
	out, err = w.Exec(ctx, "shop", "dig", "@"+nameServer, "+short", "+subnet="+p.subnet, name)
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		w.Errorf("dig +subnet=%s is led to %s, want %s: %v", p.subnet, got, want, err)
	}
}

// asks asks from a host.
func (w *world) asks(ctx context.Context, host string, s demo.NamesSpec) asked {
	s.Server, s.Name, s.Rate = nameServer+":53", name, 200
	a := asked{who: strings.TrimSpace(host + " " + s.Subnet)}
	a.err = netnsrun.Do(w.Lab.NetNS(host), func() (err error) {
		a.NamesResult, err = demo.RunNames(ctx, s)
		return err
	})
	return a
}

// dies cuts a cloudlet's machine off and kills its agent, while each client and a resolver
// for each network ask all the time; then it comes back.
func (w *world) dies(p place) {
	ctx, dead := w.Context(), w.at[p.cloudlet].String()
	const long = 12 * time.Second
	var wg sync.WaitGroup
	answers := make(chan asked, 2*len(places))
	for _, o := range places {
		for host, subnet := range map[string]string{o.client: "", "shop": o.subnet} {
			wg.Go(func() { answers <- w.asks(ctx, host, demo.NamesSpec{For: long, Subnet: subnet}) })
		}
	}
	time.Sleep(time.Second) // before, all is as it was
	out, err := w.Exec(ctx, p.node, "ip", "link", "set", "underlay", "down")
	if err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	died := time.Now()
	w.must(w.Kill(p.node, syscall.SIGKILL))
	wg.Wait()
	close(answers)
	moved, questions := time.Duration(0), 0
	for a := range answers {
		if a.err != nil || a.Failed > 0 || a.TTL > uint32(life/time.Second) || a.Asked < 100 {
			w.Errorf("%s: %v, %d of %d questions failed, answers live %d s", a.who, a.err, a.Failed, a.Asked, a.TTL)
		}
		questions += a.Asked
		own := a.who == p.client || strings.HasSuffix(a.who, " "+p.subnet)
		for i, x := range a.Answers {
			switch {
			case x.Address == dead && own && i == 0:
				moved = max(moved, x.Last.Sub(died))
			case x.Address == dead:
				w.Errorf("%s is led to the dead cloudlet %s after its death", a.who, x.Last.Sub(died))
			case x.Address == "":
				w.Errorf("%s is led nowhere %d times", a.who, x.Count)
			case own && p.next != "" && x.Address != w.at[p.next].String():
				w.Errorf("%s is led to %s, not to %s, the next", a.who, x.Address, p.next)
			}
		}
		if own && a.err == nil && (a.Answers[0].Address != dead || len(a.Answers) < 2) {
			w.Errorf("%s was not led to %s first, and elsewhere then: %+v", a.who, p.cloudlet, a.Answers)
		}
	}
	if moved > life {
		w.Errorf("answers named it for %s", moved)
	}
	w.Logf("%d questions; the last answer that named it came %s after its death", questions, moved.Round(time.Millisecond))
	w.comesBack(p)
}

func (w *world) comesBack(p place) {
	ctx := w.Context()
	if out, err := w.Exec(ctx, p.node, "ip", "link", "set", "underlay", "up"); err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	w.must(w.StartNode(ctx, p.node))
	w.serves(len(places))
	for _, o := range places {
		w.leads(o, o.cloudlet)
	}
}
