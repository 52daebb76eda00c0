package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/internal/netnsrun"
)

// readerRests is longer than any time-out of a relay.
const readerRests = 150 * time.Second

// limitYAML has a port relayed where somebody listens, one where nobody does, and an address
// that nobody has.
const limitYAML = `
apiVersion: onpath/v1alpha1
kind: Accelerator
metadata: {name: limit}
spec:
  origins:
  - {address: 10.9.0.2, port: %d}
  - {address: 10.9.0.2, port: %d}
  - {address: 10.9.0.99, port: 80}
  between: [gw1]
  syn: %s
`

// echoOrRest echoes what comes, urgent bytes in their place, or rests and then echoes.
func echoOrRest(c *net.TCPConn) {
	raw, _ := c.SyscallConn()
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	mode := make([]byte, 1)
	if _, err := io.ReadFull(c, mode); err != nil {
		return
	}
	if mode[0] == 'r' {
		time.Sleep(readerRests)
	}
	_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // not by splice(2)
}

// TestRelayAtItsLimit: 2,000 idle clients of one prefix fill a relay, while others send urgent
// data, an upload waits for its reader and two origins do not answer. Nobody is reset, no
// stream ends early, the relay says that it is full and then that it is not, and its parts of
// processor time are the process'.
func TestRelayAtItsLimit(t *testing.T) {
	ctx := need(t, 8*time.Minute)
	s := serveTCP(t, echoOrRest)
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
	// A client of another prefix.
	run(ctx, t, "client", "ip", "addr", "add", "10.3.0.2/32", "dev", "eth0")
	run(ctx, t, "gw1", "ip", "route", "add", "10.3.0.2/32", "via", "10.1.0.2")
	t.Cleanup(func() {
		_, _ = testbed.Exec(context.Background(), "client", "ip", "addr", "del", "10.3.0.2/32", "dev", "eth0")
		_, _ = testbed.Exec(context.Background(), "gw1", "ip", "route", "del", "10.3.0.2/32")
	})
	const closedPort = 4
	apply(ctx, t, fmt.Sprintf(limitYAML, s.port, closedPort, "answer"))
	active(ctx, t, "limit-gw1")
	dial := func(from string, host string, port int) (*net.TCPConn, error) {
		var c net.Conn
		err := netnsrun.Do(testbed.Lab.NetNS("client"), func() (err error) {
			d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
			c, err = d.Dial("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
			return err
		})
		if err != nil {
			return nil, err
		}
		return c.(*net.TCPConn), nil
	}
	open := func(from string, mode byte) (*net.TCPConn, error) {
		c, err := dial(from, "10.9.0.2", s.port)
		if err == nil {
			_, err = c.Write([]byte{mode})
		}
		return c, err
	}
	const crowd, other = "10.1.0.2", "10.3.0.2"
	var r *relayProcess
	if err := testbed.WaitFor(ctx, "a connection is relayed", time.Minute, func() (bool, error) {
		if r = relaysOf(t, "gw1"); r == nil {
			return false, nil
		}
		c, err := open(other, 'e')
		if err != nil {
			return false, nil
		}
		defer c.Close()
		return pingPong(c, make([]byte, 1)) == nil && r.opened(t) > 0, nil
	}); err != nil {
		t.Fatal(err)
	}
	old, err := open(other, 'e')
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	var rests sync.WaitGroup
	rests.Go(func() { // an upload to a reader that rests
		c, err := open(other, 'r')
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		began := time.Now()
		sent := make([]byte, 24<<20) // more than buffers hold
		_, _ = rand.Read(sent)
		failed := make(chan error, 1)
		go func() {
			_, err := c.Write(sent)
			failed <- errors.Join(err, c.CloseWrite())
		}()
		got, err := io.ReadAll(c)
		if werr := <-failed; werr != nil || err != nil || !bytes.Equal(got, sent) {
			t.Errorf("an upload whose reader rests: after %s %d of %d bytes, %v, %v", time.Since(began), len(got), len(sent), err, werr)
		}
		t.Logf("an upload whose reader rested for %s came whole after %s", readerRests, time.Since(began).Round(time.Second))
	})

	var idle []*net.TCPConn
	defer func() {
		for _, c := range idle {
			c.Close()
		}
	}()
	filling := time.Now()
	for i := range 2000 {
		c, err := open(crowd, 'e')
		if err != nil {
			t.Fatalf("idle client %d: %v", i, err)
		}
		idle = append(idle, c)
	}
	filled := time.Since(filling)
	full := func(want bool) {
		t.Helper()
		if err := testbed.WaitFor(ctx, fmt.Sprintf("the relay says that it is full: %t", want), time.Minute, func() (bool, error) {
			out, err := testbed.Onpath(ctx, "describe", "accelerator", "limit")
			return bytes.Contains(out, []byte("RelayFull")) == want, err
		}); err != nil {
			t.Error(err)
		}
	}
	full(true)
	relayed := r.opened(t)
	for i := range 50 {
		if err := urgentEcho(open, other); err != nil {
			t.Errorf("beside 2,000 idle clients, client %d of another prefix: %v", i, err)
		}
	}
	t.Logf("of 2,000 idle clients, which came within %s, about %d are relayed; of 50 others behind them %d",
		filled.Round(time.Millisecond), relayed, r.opened(t)-relayed)
	var dead []int
	for i, c := range idle {
		if err := pingPong(c, make([]byte, 1)); err != nil {
			if dead = append(dead, i); len(dead) == 1 {
				t.Errorf("idle client %d does not live: %v", i, err)
			}
		}
	}
	if len(dead) > 0 {
		t.Errorf("of 2,000 idle clients %d are dead: numbers %v", len(dead), dead)
	}
	if err := pingPong(old, make([]byte, 1)); err != nil {
		t.Errorf("a connection from before: %v", err)
	}
	for _, c := range idle {
		c.Close()
	}
	idle = nil
	full(false)
	for i := range 20 {
		if err := urgentEcho(open, other); err != nil {
			t.Errorf("urgent data by the relay, %d: %v", i, err)
		}
	}
	if n := r.opened(t); n <= relayed {
		t.Errorf("the relay has room, and relays nothing: %d connections, and %d before", n, relayed)
	}
	for _, to := range []struct {
		host  string
		port  int
		after time.Duration
	}{{"10.9.0.2", closedPort, 2 * time.Second}, {"10.9.0.99", 80, 15 * time.Second}} {
		c, err := dial(other, to.host, to.port)
		if err != nil {
			continue // told at once
		}
		began := time.Now()
		_ = c.SetReadDeadline(began.Add(20 * time.Second))
		_, err = c.Read(make([]byte, 1))
		if took := time.Since(began); !errors.Is(err, syscall.ECONNRESET) || took > to.after {
			t.Errorf("of %s:%d, which does not answer, the client is told %v after %s", to.host, to.port, err, took)
		}
		c.Close()
	}
	apply(ctx, t, fmt.Sprintf(limitYAML, s.port, closedPort, "wait"))
	if err := testbed.WaitFor(ctx, "a closed port looks closed", time.Minute, func() (bool, error) {
		_, err := dial(other, "10.9.0.2", closedPort)
		return errors.Is(err, syscall.ECONNREFUSED), nil
	}); err != nil {
		t.Error(err)
	}
	if c, err := dial(other, "10.9.0.99", 80); err == nil {
		c.Close()
		t.Error("with syn: wait, an address that nobody has takes a connection")
	}
	if err := urgentEcho(open, other); err != nil {
		t.Errorf("urgent data where clients wait: %v", err)
	}
	rests.Wait()
	if err := pingPong(old, make([]byte, 1)); err != nil {
		t.Errorf("a connection from before, at the end: %v", err)
	}
	paid, took := r.paid(t)
	t.Logf("the relays pay %s, and the process took %s", paid, took)
	if d := paid - took; d > 50*time.Millisecond || d < -50*time.Millisecond {
		t.Errorf("the relays pay %s, and the process took %s", paid, took)
	}
}

// urgentEcho has a stream with urgent data in the middle and before its end echoed.
func urgentEcho(open func(string, byte) (*net.TCPConn, error), from string) error {
	c, err := open(from, 'e')
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	sent := []byte("one!two!")
	for i, b := range sent {
		flags := 0
		if b == '!' {
			flags = unix.MSG_OOB
		}
		failed := raw.Control(func(fd uintptr) { err = unix.Sendto(int(fd), sent[i:i+1], flags, nil) })
		if err = errors.Join(failed, err); err != nil {
			return err
		}
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		return fmt.Errorf("%q came back, %w", got, err)
	}
	return nil
}

// paid is what all relays of the process pay of processor time, and what it took.
func (r *relayProcess) paid(t *testing.T) (paid, took time.Duration) {
	t.Helper()
	res, err := r.client.Get("http://relay/instances")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var state struct {
		Used map[string]struct{ CPU time.Duration }
	}
	if err := json.NewDecoder(res.Body).Decode(&state); err != nil {
		t.Fatal(err)
	}
	for _, u := range state.Used {
		paid += u.CPU
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	var user, system int64
	f := strings.Fields(rest)
	_, _ = fmt.Sscan(f[11]+" "+f[12], &user, &system)
	return paid, time.Duration(user+system) * 10 * time.Millisecond
}
