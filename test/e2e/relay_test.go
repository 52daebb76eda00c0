package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// relayedYAML has connections to a port of origin relayed on the gateway, which takes other
// instances again afterwards no more than before.
const relayedYAML = `
apiVersion: onpath/v1alpha1
kind: Accelerator
metadata: {name: alone}
spec:
  origins: [{address: 10.9.0.2, port: %d}, {address: 10.9.0.2, port: 4}] # where nobody listens
  between: [gw1]
  syn: %s
`

const gatewayTakesRelays = `
apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: gw1}
spec:
  cloudlet: pop
  underlay: {address: 10.255.0.1}
  uplinks:
  - {name: access, device: access, attach: router, side: access}
  - {name: core, device: core, attach: router, side: core}
`

// TestRelaysAlone: a closed port looks closed where clients wait. Without the server, and without the agent too, relays go on with the
// connections they have and take new ones; those are reset at once if the relays' process
// is killed.
func TestRelaysAlone(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	s := serveTCP(t, echo)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(gatewayTakesRelays), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := testbed.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := testbed.Apply(context.Background(), "testdata/nodes.yaml"); err != nil {
			t.Error(err)
		}
	})
	apply(ctx, t, fmt.Sprintf(relayedYAML, s.port, "wait"))
	active(ctx, t, "alone-gw1")
	var r *relayProcess
	if err := testbed.WaitFor(ctx, "a connection is relayed", time.Minute, func() (bool, error) {
		if r = relaysOf(t, "gw1"); r == nil {
			return false, nil
		}
		c, err := dialTCP(t, "10.9.0.2", s.port, 5*time.Second)
		if err != nil {
			return false, nil
		}
		defer c.Close()
		return pingPong(c, make([]byte, 1)) == nil && r.opened(t) > 0, nil
	}); err != nil {
		t.Fatal(err)
	}
	transfer(t, s, "10.9.0.2", 1<<20)
	for range 3 {
		if _, err := dialTCP(t, "10.9.0.2", 4, time.Minute); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("with syn: wait, of a closed port the client is told %v", err)
		}
	}
	apply(ctx, t, fmt.Sprintf(relayedYAML, s.port, "answer"))
	if err := testbed.WaitFor(ctx, "clients are answered at once", time.Minute, func() (bool, error) {
		c, err := dialTCP(t, "10.9.0.2", 4, 5*time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil, nil
	}); err != nil {
		t.Error(err)
	}
	old, err := dialTCP(t, "10.9.0.2", s.port, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	goesOn := func(without string) {
		t.Helper()
		if err := pingPong(old, make([]byte, 1)); err != nil {
			t.Errorf("without %s, a connection that was there: %v", without, err)
		}
		before := r.opened(t) // the relays have counted what has been answered
		transfer(t, s, "10.9.0.2", 1<<20)
		if n := r.opened(t) - before; n != 1 {
			t.Errorf("without %s, %d of 1 new connections were relayed", without, n)
		}
	}
	if err := testbed.Kill("server", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	goesOn("the server")
	if err := testbed.Kill("gw1", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	goesOn("the server and the agent")
	if err := testbed.StartServer(ctx); err != nil {
		t.Fatal(err)
	}
	if err := testbed.StartNode(ctx, "gw1"); err != nil {
		t.Fatal(err)
	}
	goesOn("nothing")

	began := time.Now()
	if err := syscall.Kill(r.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = old.SetReadDeadline(time.Now().Add(time.Minute))
	_, err = old.Read(make([]byte, 1))
	took := time.Since(began)
	t.Logf("the relays' process killed: the client is told %v after %s", err, took)
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client is told %v, must be a reset", err)
	}
	promised(t, "the reset", took, 300*time.Millisecond)
}

// relayProcess is a node's process that runs all its relays.
type relayProcess struct {
	pid    int
	client http.Client
}

// relaysOf finds the process of a lab host; nil: there is none.
func relaysOf(t *testing.T, host string) *relayProcess {
	t.Helper()
	home, err := os.Stat(testbed.Lab.NetNS(host))
	if err != nil {
		t.Fatal(err)
	}
	list, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range list {
		args, _ := os.ReadFile(f)
		_, socket, ok := bytes.Cut(args, []byte("\x00relay\x00--socket\x00"))
		if !ok {
			continue
		}
		proc := filepath.Dir(f)
		if ns, err := os.Stat(proc + "/ns/net"); err != nil || !os.SameFile(ns, home) {
			continue
		}
		r := &relayProcess{}
		r.pid, _ = strconv.Atoi(filepath.Base(proc))
		path := proc + "/root" + strings.TrimRight(string(socket), "\x00")
		r.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
		return r
	}
	return nil
}

// opened is how many connections they have taken.
func (r *relayProcess) opened(t *testing.T) int {
	t.Helper()
	res, err := r.client.Get("http://relay/instances")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var state struct {
		Stats struct{ Opened int }
	}
	if err := json.NewDecoder(res.Body).Decode(&state); err != nil {
		t.Fatal(err)
	}
	return state.Stats.Opened
}
