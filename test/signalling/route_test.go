package signalling

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/internal/funcbuild"
	"github.com/onpath/onpath/signal/nslp"
)

// TestRouteChanges: while a publisher prolongs a lease, the route to the user changes between
// two nodes. The new one installs the module and counts, the old one forgets it with its time,
// and no datagram is lost beside the change itself.
func TestRouteChanges(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it waits for leases to end")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w := setUpIn(ctx, t, "routes", uplinks{"gw1": {"core", "east", "south"}, "gw2": {"west", "access"}, "gw3": {"north", "access"}})
	w.operate(ctx, "50%", "50%", "50%")
	nodes := []string{"gw2", "gw3"}
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent")
	for _, e := range []ends{v4, v6} {
		w.ask(ctx, e, w.brief(e), "gw1 installed, gw2 installed")
	}
	for round := range 4 {
		old, now := nodes[round%2], nodes[1-round%2]
		w.route(ctx, now)
		for until := time.Now().Add(leased + time.Second); time.Now().Before(until); time.Sleep(leased / 4) {
			for _, e := range []ends{v4, v6} {
				w.ask(ctx, e, w.brief(e), "gw1 prolonged, "+now+" prolonged")
			}
		}
		err := w.WaitFor(ctx, old+" forgets", time.Minute, func() (bool, error) {
			none, err := w.without(ctx, old)
			if err != nil || !none {
				return false, err
			}
			var list []onpath.Lease
			if err := w.Get(ctx, &list, "leases", "--tenant", "voice"); err != nil {
				return false, err
			}
			held := map[string]int{}
			for _, l := range list {
				held[l.Spec.Node]++
			}
			return held["gw1"] == 2 && held[now] == 2 && len(list) == 4, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []ends{v4, v6} {
			before := w.counted.Load()
			if back := w.pass(e, 20); back != 20 {
				t.Errorf("by %s, %d of 20 datagrams to %s are answered", now, back, e.publisher)
			}
			err := w.WaitFor(ctx, "both nodes count", time.Minute, func() (bool, error) { return w.counted.Load() >= before+2, nil })
			if err != nil {
				t.Error(err)
			}
		}
	}
	for _, e := range []ends{v4, v6} {
		w.ask(ctx, e, &nslp.Message{Type: nslp.Remove, Module: "m" + e.user.String()}, "gw1 removed, gw2 removed")
	}
	w.gone(ctx)
}

// leased is the time of a lease that is to end soon.
const leased = 8 * time.Second

// brief is a request for a short time, of a name for each end.
func (w *world) brief(e ends) *nslp.Message {
	m := w.setup(e, "m"+e.user.String())
	m.TTL = leased
	return m
}

// route changes the way between publisher and user, both ways and for both IP versions.
func (w *world) route(ctx context.Context, by string) {
	w.t.Helper()
	last, link := "1", "12"
	if by == "gw3" {
		last, link = "2", "13"
	}
	for _, c := range []string{
		"gw1 ip route replace 10.1.0.0/24 via 10." + link + ".0.2", "gw1 ip -6 route replace 2001:db8:1::/64 via 2001:db8:" + link + "::2",
		"user ip route replace default via 10.1.0." + last, "user ip -6 route replace default via 2001:db8:1::" + last,
	} {
		host, command, _ := strings.Cut(c, " ")
		if out, err := w.Exec(ctx, host, strings.Fields(command)...); err != nil {
			w.t.Fatalf("%s: %v: %s", c, err, out)
		}
	}
}

// TestForges: a publisher's module that sends in others' names reaches nobody but its owner.
func TestForges(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; test/e2e has the same for functions")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	code, err := funcbuild.Compile(ctx, "../e2e/testdata/modules/forge.c", funcbuild.ToWasm)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := setUp(ctx, t)
	w.forging = code
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent")
	m := w.setup(v4, "forge")
	m.URL, m.Hash = strings.Replace(m.URL, "module", "forge", 1), nslp.HashOf(code)
	w.ask(ctx, v4, m, "gw1 installed, gw2 installed")
	c := client.Unix(strings.TrimPrefix(w.Socket(), "unix://"))
	defer c.Close()
	spoofed := func(node string) (n uint64) {
		all, err := c.Counters(ctx, node)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range all.Nodes[node].Vports {
			n += v.Dropped[onpath.DropSpoofed]
		}
		return n
	}
	const given = 50
	if back := w.pass(v4, given); back != given {
		t.Errorf("%d of %d datagrams are answered", back, given)
	}
	for _, node := range w.names() {
		err := w.WaitFor(ctx, "answers that nobody gave are dropped", time.Minute, func() (bool, error) { return spoofed(node) >= given, nil })
		if err != nil {
			t.Errorf("%s: of %d %d were dropped as spoofed: %v", node, given, spoofed(node), err)
		}
	}
}
