package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/funcbuild"
)

// modules compiles the modules of testdata and says where they lie.
func modules(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"null", "rewrite", "serve", "forge"} {
		code, err := funcbuild.Compile(t.Context(), "testdata/modules/"+name+".c", funcbuild.ToWasm)
		if errors.Is(err, funcbuild.ErrLacking) {
			t.Skip(err)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".wasm"), code, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// moduleChain has all traffic between client and origin cross a function with modules.
const moduleChain = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: modules}
spec:
  state: none
  packets: rewrite
  resources: {cpu: "1", memory: 64Mi}
  wasm:
    modules: [MODULES]
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: modules}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{function: modules, none: bypass, drain: 1s}]
`

func moduleOf(dir, name, more string) string {
	return fmt.Sprintf("{name: '%s', module: %s/%s.wasm%s}", name, dir, name, more)
}

func applyModules(ctx context.Context, t *testing.T, list ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "modules.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(moduleChain, "MODULES", strings.Join(list, ", "), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := testbed.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
}

// TestModuleTraffic: through a module that does nothing and one that writes packets anew,
// TCP arrives intact each way, UDP of full size and pings pass, and what is too big is
// answered so.
func TestModuleTraffic(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	dir := modules(t)
	apply(ctx, t, strings.Replace(moduleChain, "MODULES", moduleOf(dir, "null", "")+", "+moduleOf(dir, "rewrite", ""), 1))
	active(ctx, t, "modules")
	ready(ctx, t, 1)
	size := int64(8 << 20)
	if os.Getenv("ONPATH_SOAK") != "" {
		size = 100_000_000
	}
	s := serveTCP(t, echo)
	for _, to := range []string{"10.9.0.2", "fd09::2"} {
		began := time.Now()
		transfer(t, s, to, size)
		t.Logf("%d bytes each way to %s in %s", size, to, time.Since(began))
		run(ctx, t, "client", "ping", "-c2", "-i0.2", "-W2", to)
		run(ctx, t, "client", "ping", "-c1", "-W2", "-Mdo", "-s", map[bool]string{true: "1452", false: "1472"}[strings.Contains(to, ":")], to)
		full(t, to)
	}
	tooBig(ctx, t, s)
	err := testbed.WaitFor(ctx, "the instance's status names its modules", time.Minute, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		return err == nil && len(list) == 1 && len(list[0].Status.Modules) == 2 && list[0].Status.Modules[1].Name == "rewrite", err
	})
	if err != nil {
		t.Error(err)
	}
}

// full sends a UDP packet of 1,500 bytes and wants it back.
func full(t *testing.T, to string) {
	t.Helper()
	c := dialUDP(t, to, udpEcho(t, to))
	defer c.Close()
	b := make([]byte, 1500-28)
	if strings.Contains(to, ":") {
		b = make([]byte, 1500-48)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := c.Read(make([]byte, 2000)); n != len(b) {
		t.Errorf("of %d bytes by UDP to %s %d came back: %v", len(b), to, n, err)
	}
}

// tooBig gives the hosts links of 9,000 bytes, which the function's instances have not.
func tooBig(ctx context.Context, t *testing.T, s *tcpServer) {
	t.Helper()
	set := func(mtu string) {
		for host, devices := range map[string][]string{"client": {"eth0"}, "origin": {"eth0"}, "gw1": {"access", "core"}} {
			for _, d := range devices {
				if out, err := testbed.Exec(context.WithoutCancel(ctx), host, "ip", "link", "set", d, "mtu", mtu); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			}
		}
	}
	set("9000")
	defer set("1500")
	for _, to := range []string{"10.9.0.2", "fd09::2"} {
		out, err := testbed.Exec(ctx, "client", "ping", "-c1", "-W2", "-Mdo", "-s", "8900", to)
		if text := strings.ToLower(string(out)); err == nil || !strings.Contains(text, "mtu") {
			t.Errorf("a packet of 9,000 bytes to %s is not answered too big: %v\n%s", to, err, out)
		}
		transfer(t, s, to, 1<<20)
	}
}

// TestModuleChanges: the list of modules changes under numbered datagrams, and the module
// that stays sees all of them; so it does when the agent is killed. When its engine is
// killed, packets pass by.
func TestModuleChanges(t *testing.T) {
	ctx := need(t, 4*time.Minute)
	dir := modules(t)
	stays := moduleOf(dir, "null", "")
	apply(ctx, t, strings.Replace(moduleChain, "MODULES", stays, 1))
	active(ctx, t, "modules")
	ready(ctx, t, 1)
	port := udpEcho(t, "10.9.0.2")
	changes, perSecond := 12, 200 // few enough to wait in the rings of an engine that a busy machine lets rest
	if os.Getenv("ONPATH_SOAK") != "" {
		changes = 100
		s, most := steady(t, "10.9.0.2", port, 10*time.Second)
		s.end()
		perSecond = most / 2
	}
	earlier := losses(ctx, t)
	s := startStream(t, "10.9.0.2", port, perSecond)
	for n := range changes {
		switch n % 4 {
		case 0:
			applyModules(ctx, t, stays, moduleOf(dir, "rewrite", ""))
		case 1:
			applyModules(ctx, t, moduleOf(dir, "rewrite", ""), stays)
		case 2:
			applyModules(ctx, t, moduleOf(dir, "null", fmt.Sprintf(", config: {version: '%d'}", n)), moduleOf(dir, "rewrite", ""))
		case 3:
			applyModules(ctx, t, stays)
		}
		time.Sleep(100 * time.Millisecond)
	}
	list, err := testbed.Instances(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d instances, %v", len(list), err)
	}
	if err := testbed.Kill(list[0].Spec.Node, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if err := testbed.StartNode(ctx, list[0].Spec.Node); err != nil {
		t.Fatal(err)
	}
	allConnected(ctx, t)
	noneLost(ctx, t, s, earlier)

	g := gauge(t, 4, 500)
	victim := carrierOf(ctx, t, g)
	killInstance(ctx, t, victim)
	time.Sleep(time.Second)
	blackout(ctx, t, g, "engine killed, none: bypass", 50*time.Millisecond)
	restarted(ctx, t, victim.Metadata.Name)
}

// TestEngineLost: when one of two engines is killed, its flows are carried by the other one.
func TestEngineLost(t *testing.T) {
	idle(t)
	ctx := need(t, time.Minute)
	text := strings.NewReplacer("state: none", "state: flow", "{function: modules, none: bypass, drain: 1s}",
		"{function: modules, instances: 2, lost: repick, drain: 1s}", "MODULES", moduleOf(modules(t), "null", "")).Replace(moduleChain)
	apply(ctx, t, text)
	active(ctx, t, "modules")
	ready(ctx, t, 2)
	g := gauge(t, 8, 500)
	victim := carrierOf(ctx, t, g)
	killInstance(ctx, t, victim)
	time.Sleep(time.Second)
	blackout(ctx, t, g, "engine killed, lost: repick", 50*time.Millisecond)
	restarted(ctx, t, victim.Metadata.Name)
}

const servedChain = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: served}
spec:
  state: none
  health: {tcp: 8080, every: 200ms}
  wasm:
    modules: [{name: serve, module: DIR/serve.wasm}]
    ports: [tcp/8080, udp/7777]
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: served}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: tcp, destinationPorts: ["8080"]}, {protocol: udp, destinationPorts: ["7777"]}]
  through: [{function: served, instances: 2, drain: 1s}]
`

// TestModuleServes: modules answer datagrams and requests of a chain's traffic in the
// origin's name, where nobody listens, and requests of their node.
func TestModuleServes(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	apply(ctx, t, strings.ReplaceAll(servedChain, "DIR", modules(t)))
	active(ctx, t, "served")
	ready(ctx, t, 2) // each is reached by its node's probe, at the same port
	for _, to := range []string{"10.9.0.2", "fd09::2"} {
		for n := range 4 {
			page := fmt.Sprintf("/page/%d", n)
			body, _, err := fromClient(ctx, "http://"+net.JoinHostPort(to, "8080")+page)
			if err != nil || body != page {
				t.Errorf("%s is asked for %s and says %q, %v", to, page, body, err)
			}
		}
		c := dialUDP(t, to, 7777) // which takes answers from there alone
		for range 4 {
			if err := ask(c, time.Minute); err != nil {
				t.Errorf("a datagram to %s is not answered in its name: %v", to, err)
			}
		}
		c.Close()
	}
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		proc, ok := stateOf(t, i, "netns")
		if !ok {
			t.Fatalf("%s has no network namespace", i.Metadata.Name)
		}
		for _, a := range i.Spec.Addresses {
			url := "http://" + net.JoinHostPort(a.Addr().String(), "8080") + "/from/the/node"
			body, _, err := fetch(ctx, proc, url)
			if err != nil || body != "/from/the/node" {
				t.Errorf("%s at %s says %q, %v", i.Metadata.Name, url, body, err)
			}
		}
	}
}

// TestModuleForges: what a module sends in others' names is dropped where its instance is
// attached, and counted as spoofed; the datagrams that it was given go on.
func TestModuleForges(t *testing.T) {
	ctx := need(t, time.Minute)
	chain := strings.Replace(moduleChain, "packets: rewrite", "packets: keep", 1)
	apply(ctx, t, strings.Replace(chain, "MODULES", moduleOf(modules(t), "forge", ""), 1))
	active(ctx, t, "modules")
	ready(ctx, t, 1)
	list, err := testbed.Instances(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("%d instances, %v", len(list), err)
	}
	a := api(t)
	spoofed := func() uint64 {
		return countersOf(ctx, t, a, list[0].Spec.Node).Vports[list[0].Spec.Vport].Dropped[onpath.DropSpoofed]
	}
	c := dialUDP(t, "10.9.0.2", udpEcho(t, "10.9.0.2"))
	defer c.Close()
	err = testbed.WaitFor(ctx, "the module meets a datagram", time.Minute, func() (bool, error) {
		return ask(c, 2*time.Second) == nil && spoofed() > 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	const given, forged = 50, 3
	before := spoofed()
	for range given {
		if err := ask(c, 2*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	err = testbed.WaitFor(ctx, "all that was forged is counted", time.Minute, func() (bool, error) {
		return spoofed() >= before+given*forged, nil
	})
	if n := spoofed() - before; err != nil || n != given*forged {
		t.Errorf("of %d datagrams in others' names %d were dropped as spoofed", given*forged, n)
	}
}
