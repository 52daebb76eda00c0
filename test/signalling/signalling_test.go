package signalling

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/signal/nslp"
)

// TestInstalled: modules come to both nodes on the way, see the packets that they are for,
// and go, for both IP versions; trace tells of them. A request that no datagram holds goes by
// connections, and each answer is signed by the node's key.
func TestInstalled(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w := setUp(ctx, t)
	for _, e := range []ends{v4, v6} {
		w.ask(ctx, e, &nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent")
		w.ask(ctx, e, w.setup(e, "m"), "gw1 installed, gw2 installed")
		before := w.counted.Load()
		err := w.WaitFor(ctx, "both nodes count", time.Minute, func() (bool, error) {
			if back := w.pass(e, 10); back != 10 {
				t.Errorf("of 10 datagrams to %s %d are answered", e.publisher, back)
			}
			return w.counted.Load() >= before+2, nil
		})
		if err != nil {
			t.Error(err)
		}
		long := w.setup(e, "m")
		long.Properties = append(long.Properties, "note="+strings.Repeat("long ", 1000))
		w.ask(ctx, e, long, "gw1 prolonged, gw2 prolonged")
		w.traced(ctx, e)
		w.ask(ctx, e, &nslp.Message{Type: nslp.Remove, Module: "m"}, "gw1 removed, gw2 removed")
	}
	if fresh, err := w.known.Save(); err != nil || len(fresh) != 2 {
		t.Errorf("keys of nodes: %q, %v", fresh, err)
	}
}

// TestRefused: what does not hold is refused with its reason in answer and event; policy
// runs dry; a stranger proves by a password that an address is his.
func TestRefused(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it waits for slow servers and for events")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	w := setUp(ctx, t)
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Probe}, "gw1 absent, gw2 absent")
	w.refusals(ctx)
	if _, err := w.Onpath(ctx, "delete", "chain", "watched"); err != nil {
		t.Fatal(err)
	}
	w.operate(ctx, "50%", "50%, dryRun: true")
	w.ask(ctx, v4, w.setup(v4, "dry"), "gw1 installed, gw2 dry-run")
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Probe}, "gw1 present, gw2 absent")
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Remove, Module: "dry"}, "gw1 removed, gw2 absent")
	w.strangers(ctx)
}

// traced waits until the operator's trace of the user's packets names the publisher's
// engine, and its module.
func (w *world) traced(ctx context.Context, e ends) {
	w.t.Helper()
	var out []byte
	err := w.WaitFor(ctx, "the trace names the engine", time.Minute, func() (bool, error) {
		w.pass(e, 1)
		var err error
		out, err = w.Onpath(ctx, "trace", e.user.String(), e.publisher.String(), "-p", "udp/5060")
		return strings.Contains(string(out), "voice/leases") && strings.Contains(string(out), "m until"), err
	})
	if err != nil {
		w.t.Errorf("%v: %s", err, out)
	}
	var list []onpath.Lease
	if err := w.Get(ctx, &list, "leases", "--tenant", "voice"); err != nil || len(list) != 2 {
		w.t.Fatalf("%d leases, %v", len(list), err)
	}
	if out, err := w.Onpath(ctx, "logs", "lease/voice/"+list[0].Metadata.Name); err != nil {
		w.t.Errorf("the engine's log: %v: %s", err, out)
	}
}

// refusal is a request that must be refused.
type refusal struct {
	reason string
	with   func(m *nslp.Message) // before it is signed
	after  func(m *nslp.Message) // and after
	key    ed25519.PrivateKey    // default: the publisher's
}

func (w *world) refusals(ctx context.Context) {
	w.t.Helper()
	w.apply(ctx, `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: watch}
spec: {state: none, wasm: {modules: [{name: m, module: `+w.moduleFile()+`, none: bypass}]}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: watched}
spec: {from: any, to: {prefixes: [10.9.0.3/32]}, through: [{function: watch, none: bypass, drain: 1s}]}
`)
	if err := w.WaitActive(ctx, "watched", time.Minute, nil); err != nil {
		w.t.Fatal(err)
	}
	var replayed nslp.Message
	cases := map[string]refusal{
		"unsigned":        {reason: "Unsigned", after: func(m *nslp.Message) { m.Signature = nil }},
		"changed":         {reason: "WrongSignature", after: func(m *nslp.Message) { m.TTL *= 2 }},
		"old":             {reason: "OldTime", after: func(m *nslp.Message) { m.Sign(publisherKey, m.Time.Add(-time.Hour), m.Nonce) }},
		"unknown":         {reason: "UnknownPublisher", key: strangerKey},
		"outside":         {reason: "FilterOutside", with: func(m *nslp.Message) { m.FilterTo[0] = netip.MustParsePrefix("10.8.0.0/16") }},
		"other code":      {reason: "WrongHash", with: func(m *nslp.Message) { m.Hash = nslp.HashOf(nil) }},
		"large":           {reason: "ModuleTooLarge", with: func(m *nslp.Message) { m.URL = strings.Replace(m.URL, "module", "large", 1) }},
		"slow":            {reason: "ModuleTooSlow", with: func(m *nslp.Message) { m.URL = strings.Replace(m.URL, "module", "slow", 1) }},
		"no such block":   {reason: "MissingBlock", with: func(m *nslp.Message) { m.Dependencies = []string{"kv/99"} }},
		"taken by chains": {reason: "SelectedByChain", with: func(m *nslp.Message) { m.FilterTo[0] = netip.MustParsePrefix("10.9.0.3/32") }},
		"again":           {reason: "Replayed", after: func(m *nslp.Message) { *m = replayed }},
	}
	replayed = *w.setup(v4, "once")
	replayed.Sign(publisherKey, time.Now(), nslp.Nonce{1})
	if said, err := w.send(ctx, v4, &replayed, false, nil); err != nil || len(said) != 2 || said[0] != "gw1 installed" {
		w.t.Fatalf("%v, %v", said, err)
	}
	var wg sync.WaitGroup
	n := byte(1)
	for what, c := range cases {
		n++
		m := w.setup(v4, strings.ReplaceAll(what, " ", ""))
		if c.with != nil {
			c.with(m)
		}
		key := publisherKey
		if c.key != nil {
			key = c.key
		}
		m.Sign(key, time.Now(), nslp.Nonce(bytes.Repeat([]byte{n}, 16)))
		if c.after != nil {
			c.after(m)
		}
		wg.Go(func() {
			said, err := w.send(ctx, v4, m, false, nil)
			if err != nil || len(said) == 0 || said[0] != "gw1 refused "+c.reason {
				w.t.Errorf("%s: %v, %v, want refused %s", what, said, err, c.reason)
			}
		})
	}
	wg.Wait()
	for what, c := range cases {
		w.event(ctx, what, c.reason)
	}
	w.ask(ctx, v4, &nslp.Message{Type: nslp.Remove, Module: "once"}, "gw1 removed, gw2 removed")
}

func (w *world) moduleFile() string {
	w.t.Helper()
	return w.file("netmonitor.wasm", string(w.module))
}

// event waits until the operator sees a refusal on gw1 as an event.
func (w *world) event(ctx context.Context, what, reason string) {
	w.t.Helper()
	err := w.WaitFor(ctx, "an event", time.Minute, func() (bool, error) {
		var list []onpath.Event
		err := w.Get(ctx, &list, "events")
		return slices.ContainsFunc(list, func(e onpath.Event) bool {
			return e.Spec.Node == "gw1" && e.Spec.Reason == "Lease"+reason
		}), err
	})
	if err != nil {
		w.t.Errorf("%s: no event says Lease%s: %v", what, reason, err)
	}
}

// strangers ask where anyone may, with a password and with a wrong one.
func (w *world) strangers(ctx context.Context) {
	w.t.Helper()
	w.operate(ctx, "100%, publishers: any", "50%") // a tenth of it is one module, on two processors
	for _, c := range []struct{ name, password, want string }{
		{"wrong", "guessed", "gw1 refused WrongPassword, gw2 refused UnknownPublisher"},
		{"right", password, "gw1 installed, gw2 refused UnknownPublisher"},
		{"more", password, "gw1 refused NoShare, gw2 refused UnknownPublisher"},
	} {
		m := w.setup(v4, c.name)
		m.Password = c.password
		var last []string
		err := w.WaitFor(ctx, c.want, time.Minute, func() (bool, error) {
			var err error
			if last, err = w.send(ctx, v4, m, true, strangerKey); err != nil {
				return false, err
			}
			return !strings.Contains(last[0], "UnknownPublisher"), nil // the plan is there
		})
		if err != nil || strings.Join(last, ", ") != c.want {
			w.t.Errorf("a stranger with password %q: %v, %v, want %s", c.password, last, err, c.want)
		}
	}
	w.event(ctx, "wrong", "WrongPassword")
	w.event(ctx, "more", "NoShare")
}
