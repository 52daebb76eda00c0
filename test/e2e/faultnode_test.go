package e2e

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// nodeFault is a fault of a node that is caused.
type nodeFault struct {
	name string
	kind onpath.FaultKind
	args []string
	says string // to whom a link was cut, in the event
}

// TestNodeFaults: every fault of a node is measured, other nodes notice it and take over,
// it has ended when its time is over, and is told of; one that is refused changes nothing.
func TestNodeFaults(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	needPython(t)
	apply(ctx, t, relays)
	active(ctx, t, "relayed")
	ready(ctx, t, 2)
	port := udpEcho(t, "10.9.0.2")
	s := startStream(t, "10.9.0.2", port, 200)
	defer s.end()
	time.Sleep(300 * time.Millisecond)
	t.Run("refused", func(t *testing.T) { refusedNodeFaults(ctx, t, serving(ctx, t, tupleOf(s.conn, 17)).Spec.Node) })
	for _, f := range []nodeFault{
		{name: "cut", kind: onpath.FaultCut},
		{name: "cut from one", kind: onpath.FaultCut, args: []string{"--peer", "gw1"}, says: "cut-link to gw1"},
		{name: "kill", kind: onpath.FaultKillNode},
	} {
		t.Run(f.name, func(t *testing.T) {
			ready(ctx, t, 2)
			victim := serving(ctx, t, tupleOf(s.conn, 17))
			f.cause(ctx, t, victim)
			servesAgain(ctx, t, victim, port)
		})
	}
}

func (f nodeFault) cause(ctx context.Context, t *testing.T, victim onpath.Instance) {
	t.Helper()
	node, about := victim.Spec.Node, "node "+victim.Spec.Node
	awaited := []telling{
		{reason: "FaultInjected", name: about, words: string(f.kind)}, {reason: "FaultInjected", name: about, words: f.says},
		{reason: "FaultEnded", name: about, words: string(f.kind) + " is over"}, {reason: "PeerLost", name: about, words: "gw1"},
	}
	for i := range awaited {
		awaited[i].before = awaited[i].count(ctx, t)
	}
	pid, before := testbed.Pid(node), restarts(ctx, t)
	stopped := make(chan bool, 1)
	if f.kind == onpath.FaultKillNode {
		go func() { stopped <- isStopped(pid, 15*time.Second) }()
	}
	const lasts = 3 * time.Second
	out, err := testbed.Onpath(ctx, append([]string{"fault", string(f.kind), node, "--yes", "--for", lasts.String(), "--watch", (lasts + time.Second).String(),
		"--lab", testbed.Lab.Name(), "--probe", "client:origin", "--flows", strconv.Itoa(probeFlows), "-o", "json"}, f.args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var d faultDone
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	if d.Kind != string(f.kind) || d.Target != node || time.Until(d.Until) > 0 {
		t.Errorf("%s on %s until %s is not what was asked for", d.Kind, d.Target, d.Until)
	}
	faultCase{kind: f.kind, least: lossLeast / 2}.checkProbe(t, &d)
	if d.Probe != nil && time.Duration(d.Probe.Blackout) >= lasts {
		t.Errorf("a flow stood still for %s, as long as the fault lasted: nobody took over", d.Probe.Blackout)
	}
	for _, a := range awaited {
		err := testbed.WaitFor(ctx, "an event "+a.reason+" tells of "+a.name+" "+a.words, time.Minute, func() (bool, error) {
			return a.count(ctx, t) > a.before, nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if f.kind == onpath.FaultKillNode {
		if !<-stopped {
			t.Errorf("the agent, process %d, was not stopped", pid)
		}
		if len(d.Processes) == 0 {
			t.Error("no process was killed")
		}
		restarted(ctx, t, victim.Metadata.Name)
	} else if now := restarts(ctx, t); now != before {
		t.Errorf("instances are %s, were %s", now, before)
	}
	if isStopped(pid, 0) {
		t.Errorf("the agent, process %d, is still stopped", pid)
	}
	if left := run(ctx, t, node, "find", "/var/lib/onpath/node/faults", "-type", "f"); left != "" {
		t.Errorf("of a fault that is over is still written down: %s", left)
	}
}

// isStopped waits until a process is stopped, if it is not.
func isStopped(pid int, limit time.Duration) bool {
	for until := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if strings.Contains(string(stat), ") T ") {
			return true
		}
		if !time.Now().Before(until) {
			return false
		}
	}
}

// refusedNodeFaults are asked for in vain.
func refusedNodeFaults(ctx context.Context, t *testing.T, node string) {
	other := slices.DeleteFunc([]string{"n1", "n2"}, func(n string) bool { return n == node })[0]
	refuseAll(ctx, t, strings.NewReplacer("NODE", node, "OTHER", other, "LAB", testbed.Lab.Name()), []refusal{
		{"kill-node gw1 --yes", 8, "gateway"},
		{"kill-node no-such-node --yes", 3, "no-such-node"},
		{"cut-link no-such-node --yes", 3, "no-such-node"},
		{"cut-link NODE --peer NODE --yes", 2, "itself"},
		{"cut-link NODE --peer nobody --yes", 3, "no tunnel"},
		{"cut-link NODE --peer OTHER", 2, "--yes"},
		{"cut-link --yes", 2, "arg"},
		{"kill-node NODE --for 0s --yes", 2, "--for"},
		{"kill-node NODE --for 500ms --yes", 2, "1s or more"},
		{"kill-node NODE --yes --lab LAB", 2, "leave --yes out"},
		{"kill-node NODE --for 2h --yes", 2, "at most"},
		{"cut-link NODE --lab LAB", 3, "link"},
		{"kill-node no-such-host --lab LAB", 3, "no-such-host"},
	})
}
