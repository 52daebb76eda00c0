package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/onpath/onpath"
	captured "github.com/onpath/onpath/cli/blackout"
	"github.com/onpath/onpath/lab"
)

// How long the faults here last, and for how long blackouts are measured: until some
// time behind a fault's end.
const (
	faultLasts = 1200 * time.Millisecond
	faultWatch = 1500 * time.Millisecond
	// Of a loss, which begins late where the node is busy, at least this is seen.
	lossLeast = 100 * time.Millisecond
)

// probeFlows are so many that some pass either of two instances: that all of them
// pass the other happens once in 65,536 times.
const probeFlows = 16

// faultDone is what `onpath fault -o json` prints.
type faultDone struct {
	Kind, Target, Node string
	Until              time.Time
	Processes          []int
	Probe              *lab.GaugeReport
	Flows              *captured.Report
}

// faultCase is a fault that is caused. No case has an upper bound of a blackout: that
// is a matter of how busy the machine is.
type faultCase struct {
	name  string
	kind  onpath.FaultKind
	args  []string
	probe bool          // measured with flows of its own, else from what passes the gateway
	least time.Duration // that a blackout lasts
	text  bool          // what people read, else JSON
}

// TestFaults: every fault of an instance is measured, has ended when its time is over,
// and is told of; one that is refused changes nothing.
func TestFaults(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	needPython(t)
	apply(ctx, t, relays)
	active(ctx, t, "relayed")
	ready(ctx, t, 2)
	port := udpEcho(t, "10.9.0.2")
	s := startStream(t, "10.9.0.2", port, 200)
	defer s.end()
	time.Sleep(300 * time.Millisecond) // the gateway has an entry for it
	t.Run("refused", func(t *testing.T) { refusedFaults(ctx, t, serving(ctx, t, tupleOf(s.conn, 17)).Metadata.Name) })
	const by = 50 * time.Millisecond
	for _, c := range []faultCase{
		{name: "kill captured", kind: onpath.FaultKill},
		{name: "kill probed", kind: onpath.FaultKill, probe: true},
		{name: "stall captured", kind: onpath.FaultStall},
		{name: "stall as text", kind: onpath.FaultStall, probe: true, text: true},
		{name: "drop captured", kind: onpath.FaultDrop, least: lossLeast},
		{name: "drop probed", kind: onpath.FaultDrop, probe: true, least: lossLeast},
		{name: "delay", kind: onpath.FaultDelay, args: []string{"--by", by.String()}, least: by / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			ready(ctx, t, 2)
			victim := serving(ctx, t, tupleOf(s.conn, 17))
			if c.kind == onpath.FaultDelay && !hasNetem(t) {
				refuseDelay(ctx, t, victim.Metadata.Name)
				t.Skip("needs a kernel with netem")
			}
			c.cause(ctx, t, victim, s)
			servesAgain(ctx, t, victim, port)
		})
	}
}

// cause runs the command, and looks at what it and the events tell.
func (c faultCase) cause(ctx context.Context, t *testing.T, victim onpath.Instance, s *stream) {
	t.Helper()
	name := victim.Metadata.Name
	args := append([]string{"fault", string(c.kind), name, "--yes", "--watch", faultWatch.String()}, c.args...)
	if c.kind != onpath.FaultKill {
		args = append(args, "--for", faultLasts.String())
	}
	if c.probe {
		args = append(args, "--lab", testbed.Lab.Name(), "--probe", "client:origin", "--flows", strconv.Itoa(probeFlows))
	}
	if !c.text {
		args = append(args, "-o", "json")
	}
	awaited := c.tellings(name)
	for i := range awaited {
		awaited[i].before = awaited[i].count(ctx, t)
	}
	out, err := testbed.Onpath(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	if c.text {
		c.checkText(t, victim, string(out))
	} else {
		c.checkReport(ctx, t, victim, s, out)
	}
	for _, a := range awaited {
		err := testbed.WaitFor(ctx, "an event "+a.reason+" tells of "+name+" "+a.words, time.Minute, func() (bool, error) {
			return a.count(ctx, t) > a.before, nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if c.kind == onpath.FaultKill {
		restarted(ctx, t, name)
		return
	}
	if left := run(ctx, t, victim.Spec.Node, "find", "/var/lib/onpath/node/faults", "-type", "f"); left != "" {
		t.Errorf("of a fault that is over is still written down: %s", left)
	}
}

// telling is an event that is awaited.
type telling struct {
	reason, name, words string
	before              int // so often it was told already: repeats are counted
}

func (a telling) count(ctx context.Context, t *testing.T) (n int) {
	t.Helper()
	list, _, err := api(t).List(ctx, onpath.KindEvent, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		e := o.(*onpath.Event)
		if e.Spec.Reason == a.reason && strings.Contains(e.Spec.About, a.name) && strings.Contains(e.Spec.Message, a.words) {
			n += max(e.Spec.Count, 1)
		}
	}
	return n
}

// tellings are the events of a fault, with those of what it does to the instance.
func (c faultCase) tellings(name string) []telling {
	if c.kind == onpath.FaultKill {
		return []telling{{reason: "FaultInjected", name: name, words: "killed on purpose by"}}
	}
	out := []telling{
		{reason: "FaultInjected", name: name, words: string(c.kind) + " on purpose by"},
		{reason: "FaultEnded", name: name, words: string(c.kind) + " is over"},
	}
	if c.kind == onpath.FaultStall {
		out = append(out, telling{reason: "Stalled", name: name})
	}
	return out
}

// checkReport reads the report.
func (c faultCase) checkReport(ctx context.Context, t *testing.T, victim onpath.Instance, s *stream, out []byte) {
	t.Helper()
	var d faultDone
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	if d.Kind != string(c.kind) || d.Target != "default/"+victim.Metadata.Name || d.Node != victim.Spec.Node {
		t.Errorf("%s on %s at node %s is not what was asked for", d.Kind, d.Target, d.Node)
	}
	c.checkProcesses(ctx, t, d.Processes)
	if (c.kind == onpath.FaultKill) != d.Until.IsZero() || d.Until.After(time.Now()) {
		t.Errorf("it is %s, and the fault lasts until %s", time.Now(), d.Until)
	}
	if c.probe {
		c.checkProbe(t, &d)
	} else {
		c.checkCaptured(t, &d, s)
	}
}

// checkProcesses: what was killed is gone; what was stopped goes on, but a probe among
// the processes, which ends.
func (c faultCase) checkProcesses(ctx context.Context, t *testing.T, pids []int) {
	t.Helper()
	if named := c.kind == onpath.FaultKill || c.kind == onpath.FaultStall; named != (len(pids) > 0) {
		t.Errorf("processes %v", pids)
	}
	for at, pid := range pids {
		err := testbed.WaitFor(ctx, "process "+strconv.Itoa(pid)+" is as it must be", time.Minute, func() (bool, error) {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			if c.kind == onpath.FaultKill {
				return err != nil, nil
			}
			return (err == nil || at > 0) && !strings.Contains(string(stat), ") T "), nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// checkProbe: some of the probe's flows passed the victim.
func (c faultCase) checkProbe(t *testing.T, d *faultDone) {
	t.Helper()
	p := d.Probe
	if p == nil || d.Flows != nil || len(p.Flows) != probeFlows {
		t.Fatalf("probe %+v and captures %+v, must be a probe of %d flows", p, d.Flows, probeFlows)
	}
	t.Logf("longest blackout of %d flows %s; %d of %d packets lost", len(p.Flows), p.Blackout, p.Lost, p.Sent)
	if p.Sent == 0 || p.Lost >= p.Sent || p.Resolution <= 0 || time.Duration(p.Blackout) <= c.least {
		t.Errorf("longest blackout %s, must be more than %s; %d of %d packets lost, resolution %s", p.Blackout, c.least, p.Lost, p.Sent, p.Resolution)
	}
	if c.kind == onpath.FaultDrop && p.Lost == 0 {
		t.Error("no packet was lost")
	}
}

// checkCaptured finds the stream, which passed the victim, among the flows captured.
func (c faultCase) checkCaptured(t *testing.T, d *faultDone, s *stream) {
	t.Helper()
	if d.Probe != nil || d.Flows == nil {
		t.Fatalf("probe %+v and captures %+v, must be captures", d.Probe, d.Flows)
	}
	src, dst := addrPort(s.conn.LocalAddr()), addrPort(s.conn.RemoteAddr())
	at := slices.IndexFunc(d.Flows.Flows, func(f captured.Flow) bool { return f.Protocol == 17 && f.Src == src && f.Dst == dst })
	if at < 0 {
		t.Fatalf("the flow from %s to %s is not measured: %+v", src, dst, d.Flows)
	}
	f := d.Flows.Flows[at]
	t.Logf("blackout %.1f ms; %d packets came in, %d went out", f.Blackout, f.In, f.Out)
	if f.In == 0 || f.Out == 0 || d.Flows.Packets < f.In+f.Out || d.Flows.Resolution <= 0 || d.Flows.Longest < f.Blackout {
		t.Errorf("the report %+v says of the flow %+v", d.Flows, f)
	}
	if gap := time.Duration(f.Blackout * float64(time.Millisecond)); gap <= c.least {
		t.Errorf("a blackout of %s, must be more than %s", gap, c.least)
	}
	if c.kind == onpath.FaultDrop && f.Out >= f.In {
		t.Errorf("%d packets came in and %d went out; some must be lost", f.In, f.Out)
	}
}

var faultText = regexp.MustCompile(`(?m)\A([a-z-]+): (\S+) on node (\S+)\nlongest blackout (\S+) over (\d+) flows; \d+ of [1-9]\d* packets lost; resolution 1ms\n\z`)

func (c faultCase) checkText(t *testing.T, victim onpath.Instance, out string) {
	t.Helper()
	m := faultText.FindStringSubmatch(out)
	if m == nil || !slices.Equal(m[1:4], []string{string(c.kind), "default/" + victim.Metadata.Name, victim.Spec.Node}) || m[5] != strconv.Itoa(probeFlows) {
		t.Fatalf("it says\n%s", out)
	}
	t.Log(out)
	if d, err := time.ParseDuration(m[4]); err != nil || d <= c.least {
		t.Errorf("a blackout of %s (%v), must be more than %s", m[4], err, c.least)
	}
}

// servesAgain looks for a new flow that the victim carries, and that nothing of it is
// lost. New flows go to either instance that is ready.
func servesAgain(ctx context.Context, t *testing.T, victim onpath.Instance, port int) {
	t.Helper()
	err := testbed.WaitFor(ctx, "instance "+victim.Metadata.Name+" has a new flow", time.Minute, func() (bool, error) {
		c := dialUDP(t, "10.9.0.2", port)
		defer c.Close()
		if err := ask(c, 2*time.Second); err != nil {
			return false, err
		}
		if nextOf(ctx, t, tupleOf(c, 17)) != victim.Spec.Vport {
			return false, nil
		}
		for range 50 {
			if err := ask(c, 2*time.Second); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		t.Errorf("the fault is over, but %v", err)
	}
}

// refusedFaults are asked for in vain: no event tells of one, and the instance goes on.
func refusedFaults(ctx context.Context, t *testing.T, name string) {
	refuseAll(ctx, t, strings.NewReplacer("NAME", name, "LAB", testbed.Lab.Name()), []refusal{
		{"kill-instance NAME", 2, "add --yes"},
		{"stall-instance NAME --for 1s", 2, "add --yes"},
		{"drop NAME --percent 50", 2, "add --yes"},
		{"delay NAME", 2, "add --yes"},
		{"kill-instance --yes", 2, "arg"},
		{"drop --yes", 2, "name an instance"},
		{"drop NAME --link gw1:core --yes", 2, "name an instance"},
		{"kill-instance relays --yes", 2, "say which"},
		{"kill-instance no-such-instance --yes", 3, `"no-such-instance"`},
		{"drop no-such-instance --yes", 3, `"no-such-instance"`},
		{"kill-instance NAME --tenant nobody --yes", 3, "nobody"},
		{"stall-instance NAME --for 0s --yes", 2, "--for"},
		{"stall-instance NAME --for 2h --yes", 2, "at most"},
		{"drop NAME --percent 101 --yes", 2, "--percent"},
		{"delay NAME --by -1s --yes", 2, "--by"},
		{"kill-instance NAME --watch -1s --yes", 2, "--watch"},
		{"kill-instance NAME --yes --lab LAB --probe client", 2, "--probe"},
		{"kill-instance NAME --yes --lab LAB --probe client:nobody", 3, "nobody"},
		{"kill-instance NAME --yes --lab LAB --probe client:origin --flows 0", 2, "--flows"},
		{"kill-instance NAME --yes --lab no-such-lab --probe client:origin", 3, "no-such-lab"},
		{"kill-instance NAME --yes -o nonsense", 2, "nonsense"},
	})
}

// refusal is a fault that is asked for in vain: with its exit code, and a word of why.
type refusal struct {
	args string
	code int
	says string
}

// refuseAll tries all, whose names are others': no event tells of one, and instances go on.
func refuseAll(ctx context.Context, t *testing.T, names *strings.Replacer, list []refusal) {
	t.Helper()
	told := telling{reason: "FaultInjected"}
	before, instances := told.count(ctx, t), restarts(ctx, t)
	for _, c := range list {
		refused(ctx, t, strings.Fields(names.Replace(c.args)), c.code, c.says)
	}
	if n := told.count(ctx, t); n != before {
		t.Errorf("%d events tell of faults that were refused", n-before)
	}
	if now := restarts(ctx, t); now != instances {
		t.Errorf("instances are %s, were %s", now, instances)
	}
}

// refused runs a fault that must end with the exit code, and say why.
func refused(ctx context.Context, t *testing.T, args []string, code int, says string) {
	t.Helper()
	out, err := testbed.Onpath(ctx, append([]string{"fault"}, args...)...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != code || !strings.Contains(err.Error(), says) || len(out) > 0 {
		t.Errorf("onpath fault %s: %v, must end with code %d and speak of %q; it prints %q", strings.Join(args, " "), err, code, says, out)
	}
}

// restarts are the instances with their states, and how often each was started again.
func restarts(ctx context.Context, t *testing.T) string {
	t.Helper()
	list, err := testbed.Instances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range list {
		out = append(out, i.Metadata.Name+" "+string(i.Status.State)+" "+strconv.Itoa(i.Status.Restarts))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// hasNetem asks the kernel, at a device that carries nothing.
func hasNetem(t *testing.T) (has bool) {
	t.Helper()
	in(t, "client", func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		q := netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Parent: netlink.HANDLE_ROOT}, netlink.NetemQdiscAttrs{Latency: 1})
		if netlink.QdiscAdd(q) != nil {
			return nil
		}
		has = true
		return netlink.QdiscDel(q)
	})
	return has
}

// refuseDelay: without netem the node says that it cannot, and nothing is left of it.
func refuseDelay(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	told := telling{reason: "FaultInjected", words: string(onpath.FaultDelay)}
	before := told.count(ctx, t)
	refused(ctx, t, []string{"delay", name, "--for", faultLasts.String(), "--watch", "0", "--yes"}, 8, "netem")
	if n := told.count(ctx, t); n != before {
		t.Errorf("%d events tell of a delay that was refused", n-before)
	}
}
