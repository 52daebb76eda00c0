package publisher

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath/signal/nslp"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func options() Options {
	return Options{Module: "cdn", Threshold: 10, Window: 4 * time.Second, Cold: 30 * time.Second, TTL: time.Minute, Bits4: 24, Bits6: 48}
}

func entry(node, state, module string, server string) nslp.Entry {
	e := nslp.Entry{Node: node, State: state, Modules: []string{"cdn " + module + " 60"}}
	if server != "" {
		e.Servers = []string{"cdn tcp " + server}
	}
	return e
}

// ask has clients of a region send n requests, spread over a time.
func ask(c *Crowds, now time.Time, region string, n int, within time.Duration) (last netip.AddrPort) {
	for i := range n {
		at := now.Add(within * time.Duration(i) / time.Duration(n))
		last, _ = c.Request(at, netip.MustParseAddr(fmt.Sprintf("%s.%d", region, 1+i%20)))
	}
	return last
}

func steps(list []Step) string {
	var out []string
	for _, s := range list {
		out = append(out, s.Do.String()+" "+s.Region.String())
	}
	return strings.Join(out, ", ")
}

// TestCrowd: a crowd has the module set up and looked for, is sent to the node that is nearest
// to it, keeps the lease, and loses it when it is cold; a trickle does not.
func TestCrowd(t *testing.T) {
	c := New(options())
	now := began
	ask(c, now, "10.1.0", 100, 80*time.Second)
	if got := steps(c.Next(now.Add(80 * time.Second))); got != "" {
		t.Errorf("a trickle of 5 requests in 4 s has %s sent", got)
	}
	now = now.Add(90 * time.Second)
	expect := func(what, want string) []Step {
		t.Helper()
		list := c.Next(now)
		if got := steps(list); got != want {
			t.Fatalf("%s: %q, want %q", what, got, want)
		}
		if again := steps(c.Next(now)); again != "" {
			t.Fatalf("%s: %s twice", what, again)
		}
		return list
	}
	if at := ask(c, now, "10.1.0", 20, time.Second); at.IsValid() {
		t.Errorf("clients are sent to %s, and nothing is set up", at)
	}
	now = now.Add(time.Second)
	s := expect("a crowd", "SETUP 10.1.0.0/24")[0]
	stack := []nslp.Entry{entry("gw1", nslp.Installed, "ready", "203.0.113.1:80"),
		entry("gw2", nslp.Installed, "starting", "203.0.113.2:80")}
	c.Reply(now, s, stack, nil)
	s = expect("after SETUP", "PROBE 10.1.0.0/24")[0]
	stack[0].State, stack[1].State, stack[1].Modules[0] = nslp.Present, nslp.Present, "cdn ready 60"
	if news := c.Reply(now, s, stack, nil); !strings.Contains(news, "203.0.113.2:80") {
		t.Errorf("after PROBE: %q", news)
	}
	if at := ask(c, now, "10.1.0", 1, 0); at != netip.MustParseAddrPort("203.0.113.2:80") {
		t.Errorf("clients are sent to %s", at)
	}
	if at := ask(c, now, "10.2.0", 1, 0); at.IsValid() {
		t.Errorf("another region's clients are sent to %s", at)
	}
	now = now.Add(20 * time.Second)
	s = expect("a third of the time on", "SETUP 10.1.0.0/24")[0]
	c.Reply(now, s, stack, nil)
	s = expect("after the second SETUP", "PROBE 10.1.0.0/24")[0]
	c.Reply(now, s, nil, errors.New("no answer"))
	if at := ask(c, now, "10.1.0", 1, 0); at.IsValid() {
		t.Errorf("the node does not answer, and clients are sent to %s", at)
	}
	now = now.Add(firstWait)
	s = expect("after a failure", "SETUP 10.1.0.0/24")[0]
	c.Reply(now, s, stack, nil)
	c.Reply(now, expect("after the third SETUP", "PROBE 10.1.0.0/24")[0], stack, nil)
	now = now.Add(28 * time.Second)
	if at := ask(c, now.Add(-9*time.Second), "10.1.0", 1, 0); !at.IsValid() {
		t.Error("clients are not sent to the edge any more")
	}
	c.Reply(now, expect("while it lasts", "SETUP 10.1.0.0/24")[0], stack, nil)
	c.Reply(now, c.Next(now)[0], stack, nil)
	now = now.Add(21 * time.Second)
	s = expect("when it is cold", "REMOVE 10.1.0.0/24")[0]
	c.Reply(now, s, nil, nil)
	if left := c.End(); len(left) > 0 {
		t.Errorf("%s is left", steps(left))
	}
}

// TestTwoCrowds: a node that two crowds use keeps the module until both are cold; a refusal is
// asked about ever less often.
func TestTwoCrowds(t *testing.T) {
	c := New(options())
	now := began
	ask(c, now, "10.1.0", 20, 0)
	ask(c, now, "10.2.0", 20, 0)
	stack := []nslp.Entry{entry("gw1", nslp.Present, "ready", "203.0.113.1:80")}
	for range 2 {
		for _, s := range c.Next(now) {
			c.Reply(now, s, stack, nil)
		}
	}
	now = now.Add(25 * time.Second)
	ask(c, now, "10.2.0", 1, 0)
	now = now.Add(10 * time.Second)
	for _, s := range c.Next(now) {
		if s.Do == nslp.Remove {
			t.Errorf("%s of a node that serves another crowd", steps([]Step{s}))
		}
		c.Reply(now, s, stack, nil)
	}
	if got := steps(c.End()); got != "REMOVE 10.2.0.0/24" {
		t.Errorf("in the end %q", got)
	}

	c = New(options())
	asked := 0
	for now = began; now.Before(began.Add(5 * time.Minute)); now = now.Add(time.Second) {
		ask(c, now, "10.1.0", 20, 0)
		for _, s := range c.Next(now) {
			asked++
			c.Reply(now, s, []nslp.Entry{{Node: "gw1", State: nslp.Refused, Reason: "NoServer"}}, nil)
		}
	}
	if asked < 5 || asked > 10 {
		t.Errorf("a node that refuses is asked %d times in five minutes", asked)
	}
}
