// Package pool runs the real server as a process, with nodes that promise capacity and run
// nothing, and reserves: with wrong files, and while the server is killed.
package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/internal/testprogram"
)

const objects = `
apiVersion: onpath/v1alpha1
kind: PriceList
metadata: {name: default}
spec: {currency: EUR, hour: {cpu: 1, memory: 0.1, network: 0.01}}
---
apiVersion: onpath/v1alpha1
kind: Cloudlet
metadata: {name: fra}
spec: {operatorShare: 10, prefixes: [10.1.0.0/16]}
---
apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: fra1}
spec: {cloudlet: fra, underlay: {address: 10.255.0.1}, capacity: {cpu: 40, memory: 40Gi, disk: 1Ti, network: 10Gbit}}
---
apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: fra2}
spec: {cloudlet: fra, underlay: {address: 10.255.0.2}, capacity: {cpu: 40, memory: 40Gi, disk: 1Ti, network: 10Gbit}}
`

// server is the program as `onpath server`, again and again on one store.
type server struct {
	t      *testing.T
	bin    string
	dir    string
	socket string
	log    bytes.Buffer
	cmd    *exec.Cmd
	*client.Client
	nodes []*session.Session
}

func setUp(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, bin: testprogram.Path(t), dir: t.TempDir()}
	s.socket = filepath.Join(s.dir, "s")
	s.Client = client.Unix(s.socket)
	s.start()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		for _, n := range s.nodes {
			<-n.Done()
		}
		s.Close()
		s.end(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("the server said:\n%s", s.log.Bytes()[max(0, s.log.Len()-8000):])
		}
	})
	s.apply(objects)
	for _, name := range []string{"fra1", "fra2"} {
		s.nodes = append(s.nodes, s.node(ctx, name))
	}
	s.usable()
	return s
}

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.bin, "server", "--state-dir", filepath.Join(s.dir, "state"), "--socket", s.socket)
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.await("the server to answer", func(ctx context.Context) bool { return s.Ready(ctx) == nil })
}

func (s *server) end(signal syscall.Signal) {
	_ = s.cmd.Process.Signal(signal)
	_ = s.cmd.Wait()
}

func (s *server) await(what string, ok func(context.Context) bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
		done := ok(ctx)
		cancel()
		if done {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("waited a minute for %s", what)
		}
	}
}

// usable waits until the nodes take reservations.
func (s *server) usable() {
	s.t.Helper()
	s.await("the nodes to take reservations", func(ctx context.Context) bool {
		v, err := s.Pool().Capacity(ctx, "", time.Time{}, time.Time{})
		return err == nil && len(v.Nodes) == 2 && !slices.ContainsFunc(v.Nodes, func(n onpath.NodeCapacity) bool { return !n.Usable })
	})
}

// onpath runs a command and gives its exit code and what it said.
func (s *server) onpath(args ...string) (code int, out, said string) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), s.bin, append(args, "--server", "unix://"+s.socket)...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

func (s *server) apply(yaml string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if code, _, said := s.onpath("apply", "-f", file); code != 0 {
		s.t.Fatalf("apply: exit code %d: %s", code, said)
	}
}

// node is one that promises whatever it is asked to.
func (s *server) node(ctx context.Context, name string) *session.Session {
	report := onpath.NodeReport{Node: name, Version: "test", Started: time.Now(), Capacity: onpath.Resources{CPU: 40_000, Memory: 40 << 30}}
	n := session.Dial(ctx, session.Options{
		Connect: s.Dial, Hello: func() onpath.NodeHello { return onpath.NodeHello{Node: name, Report: report} }}, promising{})
	go func() {
		for ctx.Err() == nil {
			n.Report(report)
			time.Sleep(onpath.ReportEvery)
		}
	}()
	return n
}

// promising answers as a node that keeps every promise.
type promising struct{}

func (promising) Plan(context.Context, *onpath.NodePlan) {}

func (promising) Serve(_ context.Context, op onpath.NodeOp, _ json.RawMessage, stream io.ReadWriteCloser) error {
	if op == onpath.OpPromise {
		return json.NewEncoder(stream).Encode(onpath.Promise{Kept: true})
	}
	return onpath.Errorf(onpath.CodeUnsupported, "no %s", op)
}
