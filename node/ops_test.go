package node_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/runtime/fake"
)

// answered is a stream of an operation without input.
type answered struct{ bytes.Buffer }

func (*answered) Close() error { return nil }

func (r *running) serve(op onpath.NodeOp, request any) (string, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return "", err
	}
	var out answered
	err = r.Serve(r.b.t.Context(), op, body, &out)
	return out.String(), err
}

func TestOperations(t *testing.T) {
	b := newFixture(t)
	b.path.flows = []onpath.FlowEntry{{Vport: 1, Kind: onpath.NextVport, Next: 16}, {Vport: 2, Kind: onpath.NextExit}}
	r := b.run()
	in := routed("web", 16)
	in.Spec.Container.Command = []string{"print", "hello"}
	r.plan(planOf(1, in))
	r.untilState("web", onpath.InstanceReady)

	for _, c := range []struct {
		op      onpath.NodeOp
		request any
		want    string
		code    onpath.Code
	}{
		{onpath.OpFlows, onpath.FlowFilter{Vport: 16}, `"next":16`, ""},
		{onpath.OpCounters, nil, `"flows":7`, ""},
		{onpath.OpLook, onpath.LookRequest{Flows: []onpath.FlowFilter{{Vport: 16}, {Vport: 3}}}, `"flows":[[{"vport":1,`, ""},
		{onpath.OpLogs, onpath.LogsRequest{Instance: "acme/web", Tail: -1}, "hello\n", ""},
		{onpath.OpUsage, nil, `"acme/web"`, ""},
		{onpath.OpCapture, onpath.CaptureSpec{Vport: 16}, "", ""},
		{onpath.OpLogs, onpath.LogsRequest{Instance: "acme/none"}, "", onpath.CodeNotFound},
		{onpath.OpExec, onpath.ExecRequest{Instance: "other/web"}, "", onpath.CodeNotFound},
		{onpath.OpLogs, "a string", "", onpath.CodeInvalid},
		{"dance", nil, "", onpath.CodeUnsupported},
	} {
		got, err := r.serve(c.op, c.request)
		if onpath.CodeOf(err) != c.code {
			t.Errorf("%s %v: error %v, want code %q", c.op, c.request, err, c.code)
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s %v: %q lacks %q", c.op, c.request, got, c.want)
		}
	}
	if got, _ := r.serve(onpath.OpFlows, onpath.FlowFilter{Vport: 16}); strings.Count(got, "\n") != 1 {
		t.Errorf("flows of vport 16: %q, want one line", got)
	}
}

// TestCaptureAtFunction: an ebpf function's vport is refused, with the place where its
// packets are to be seen; captures elsewhere on its node are not.
func TestCaptureAtFunction(t *testing.T) {
	b := newFixture(t)
	b.edit = func(o *node.Options) { o.Runtimes[onpath.EBPFFunction] = tellable{fake.New(b.machine)} }
	r := b.run()
	fw := routed("fw", 17)
	fw.Spec = onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: "firewall"}}
	r.plan(planOf(1, routed("web", 16), fw))
	r.untilState("web", onpath.InstanceReady)
	for v, code := range map[onpath.VportID]onpath.Code{1: "", 16: "", 17: onpath.CodeUnsupported} {
		_, err := r.serve(onpath.OpCapture, onpath.CaptureSpec{Vport: v})
		if onpath.CodeOf(err) != code {
			t.Errorf("vport %d: %v, want code %q", v, err, code)
		}
		if err != nil && !strings.Contains(err.Error(), "onpath capture --node n1 -w FILE") {
			t.Errorf("vport %d: %v names no other place", v, err)
		}
	}
}

// TestPreviousLog: what a run wrote stays to be read while the next one runs,
// and goes with the instance.
func TestPreviousLog(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	in := routed("web", 16)
	in.Spec.Container.Command = []string{"print", "one\ntwo"}
	r.plan(planOf(1, in))
	r.untilState("web", onpath.InstanceReady)
	ask := onpath.LogsRequest{Instance: "acme/web", Tail: -1, Previous: true}
	if _, err := r.serve(onpath.OpLogs, ask); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("before any run has ended: %v", err)
	}
	b.machine.Kill(b.id("web"), 1)
	b.until("it runs again", func() bool {
		got, _ := r.server.instance("web")
		return got.State == onpath.InstanceReady && got.Restarts == 1
	})
	for n, want := range map[int]string{-1: "one\ntwo\n", 1: "two\n", 0: "", 5: "one\ntwo\n"} {
		ask.Tail = n
		if got, err := r.serve(onpath.OpLogs, ask); err != nil || !strings.Contains(got, want) || n == 1 && strings.Contains(got, "one") {
			t.Errorf("the last %d lines: %q, %v; want %q", n, got, err, want)
		}
	}
	ask.Tail, ask.Timestamps = 1, true
	got, err := r.serve(onpath.OpLogs, ask)
	stamp, text, _ := strings.Cut(got, " ")
	if _, failed := time.Parse(time.RFC3339, stamp); err != nil || failed != nil || text != "two\n" {
		t.Errorf("with times: %q, %v", got, err)
	}
	ask.Tail, ask.Since = -1, time.Hour
	if got, err := r.serve(onpath.OpLogs, ask); err != nil || strings.Count(got, "\n") != 2 {
		t.Errorf("since an hour: %q, %v", got, err)
	}
	ask.Since = time.Nanosecond
	if got, err := r.serve(onpath.OpLogs, ask); err != nil || got != "" {
		t.Errorf("since now: %q, %v", got, err)
	}
	r.plan(planOf(2))
	r.untilState("web", onpath.InstanceStopped)
	b.gone()
	if left, _ := filepath.Glob(filepath.Join(b.dir, "instances", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestExec(t *testing.T) {
	b := newFixture(t)
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	for _, c := range []struct {
		command []string
		stdin   string
		want    string
		exit    int
	}{
		{[]string{"cat"}, "to and fro", "to and fro", 0},
		{[]string{"exit", "7"}, "", "", 7},
	} {
		near, far := net.Pipe()
		request, _ := json.Marshal(onpath.ExecRequest{Instance: "acme/web", Command: c.command, Stdin: true})
		served := make(chan error, 1)
		go func() {
			served <- r.Serve(t.Context(), onpath.OpExec, request, far)
			far.Close()
		}()
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		exit, err := session.RunExec(ctx, near, session.ExecIO{Stdin: strings.NewReader(c.stdin), Stdout: &out, Stderr: io.Discard})
		cancel()
		if err != nil || exit != c.exit || out.String() != c.want {
			t.Errorf("%v: exit %d, %q, %v; want %d, %q", c.command, exit, out.String(), err, c.exit, c.want)
		}
		near.Close()
		if err := <-served; err != nil {
			t.Errorf("%v: %v", c.command, err)
		}
	}
}
