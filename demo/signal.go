package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab"
)

func signalDemonstration() Demonstration {
	return Demonstration{
		Name:  "signal",
		Short: "Show a module that one message installs on the way to a user",
		Long: `Emulate five routers, three of which are onpath nodes, between a SIP server and its users. Neither
knows the operator. The server's owner asks who is on the way, has a monitor installed there by one
signed message, and beside Kamailio a responder at the first keep-alive of a user (NetServ, Section 4.2);
a message that the last node sends back reaches the node that only the way back crosses; the operator's
server is killed and a module installed all the same; and the end of their time ends all of them.
It needs Kamailio and SIPp (scripts/setup signal installs them).`,
		Seconds: 90,
		Needs:   []string{"kamailio", "sipp", "ip"},
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &signalRun{Run: r}
			err := d.show(ctx)
			return &d.figures, err
		},
	}
}

// SignalFigures are what the demonstration found.
type SignalFigures struct {
	Probe   time.Duration `json:"probe"`   // ns, until the stack was there
	Install time.Duration `json:"install"` // of the first module, on all nodes
	// Keep-alives that were sent, one by each user agent, answered, and that reached Kamailio.
	Sent     int `json:"sent"`
	Answered int `json:"answered"`
	Reached  int `json:"reached"`
	Checks   `json:"checks"`
}

// Print implements Figures.
func (f *SignalFigures) Print(w io.Writer) {
	fmt.Fprintf(w, "\n  The way was known after %s, the first module installed after %s.\n", round(f.Probe), round(f.Install))
	fmt.Fprintf(w, "  Of the keep-alives of %d user agents %d were answered, and %d reached Kamailio.\n\n", f.Sent, f.Answered, f.Reached)
	f.print(w)
}

// signalRun is a run of the demonstration.
type signalRun struct {
	*Run
	figures SignalFigures
}

// Where things are in examples/lab/signal.yaml.
const (
	publisherHost, usersHost    = "publisher", "users"
	publisherAddress, userAgent = "10.9.0.2", "10.1.0.11"
	agents, callsMade           = 2000, 20
	exampleKey                  = "FkcCwv/YDHQdT+s7Z8GPj4XWdQbAP9/5TVMa0jZlyf0=" // in operator.yaml
)

func (d *signalRun) show(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.setUp, d.probe, d.monitor, d.answer, d.trigger, d.alone, d.end,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *signalRun) file(name string) string { return d.Example("signal/" + name) }

func (d *signalRun) setUp(ctx context.Context) error {
	topology, err := lab.ParseFile(d.Example("lab/signal.yaml"))
	if err != nil {
		return err
	}
	spec := TestbedSpec{Topology: topology, Server: TestbedNode{Host: "operator", Address: "10.255.0.10"}, NodeConfig: d.file("node.yaml")}
	for i, cloudlet := range []string{"north", "access", "south"} {
		n := fmt.Sprintf("gw%d", i+1)
		spec.Nodes = append(spec.Nodes, TestbedNode{Name: n, Host: n, Address: fmt.Sprintf("10.255.0.%d", i+1), Cloudlet: cloudlet})
	}
	if err := d.SetUp(ctx, spec); err != nil {
		return err
	}
	if err := d.lend(ctx, "signal/", "a part of three nodes"); err != nil {
		return err
	}
	return d.publisher()
}

// lend makes the publisher's key in a folder of examples, and applies the operator's file with
// that key in it.
func (d *Run) lend(ctx context.Context, folder, what string) error {
	out, err := d.Testbed.Onpath(ctx, "signal", "key", d.Example(folder+"publisher.key"))
	if err != nil {
		return err
	}
	file := d.Example(folder + "operator.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text = []byte(strings.ReplaceAll(string(text), exampleKey, strings.TrimSpace(string(out))))
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	d.Say("the operator lends %s to a publisher with that key", what)
	return d.Testbed.Apply(ctx, file)
}

// publisher starts what runs at the publisher's: a web server with the modules, where
// NetMonitor sends what it counts, and Kamailio.
func (d *signalRun) publisher() error {
	t := d.Testbed
	if err := t.Start("web", publisherHost, t.Bin(), "demo", "files", d.file(""), publisherAddress+":8080"); err != nil {
		return err
	}
	if err := t.Start("collector", publisherHost, t.Bin(), "demo", "collect", publisherAddress+":5678"); err != nil {
		return err
	}
	run := filepath.Join(d.Dir, "kamailio")
	if err := os.MkdirAll(run, 0o755); err != nil {
		return err
	}
	return t.Start("kamailio", publisherHost, "kamailio", "-DD", "-E", "-f", d.file("kamailio.cfg"), "-Y", run,
		"-P", filepath.Join(run, "pid"))
}

// answered is what onpath signal prints.
type answered struct {
	Status string `json:"status"`
	Stack  []hop  `json:"stack"`
}

type hop struct {
	Node    string   `json:"node"`
	Address string   `json:"address"`
	RTT     int64    `json:"rtt"` // ns
	State   string   `json:"state"`
	Reason  string   `json:"reason"`
	Modules []string `json:"modules"`
	Back    []hop    `json:"back"`
}

// signal runs onpath signal at the publisher's.
func (d *signalRun) signal(ctx context.Context, verb string, args ...string) (a answered, err error) {
	all := append([]string{
		d.Testbed.Bin(), "signal", verb, "--toward", userAgent, "--key", d.file("publisher.key"), "--nodes", d.file("nodes"), "-o", "json",
	}, args...)
	out, err := d.Testbed.Exec(ctx, publisherHost, all...)
	if jerr := json.Unmarshal(out, &a); jerr != nil && err == nil {
		err = jerr
	}
	return a, err
}

// nodes are the names in a stack, with what became of the request.
func nodes(list []hop) string {
	var all []string
	for _, h := range list {
		all = append(all, strings.TrimSpace(h.Node+" "+h.State))
	}
	return strings.Join(all, ", ")
}

func (d *signalRun) probe(ctx context.Context) error {
	var a answered
	err := d.Testbed.WaitFor(ctx, "two nodes answer", time.Minute, func() (bool, error) {
		began := time.Now()
		var err error
		a, err = d.signal(ctx, "probe")
		d.figures.Probe = time.Since(began)
		return err == nil && len(a.Stack) == 2, ctx.Err()
	})
	if err != nil {
		return err
	}
	d.Say("onpath signal probe --toward %s", userAgent)
	for i, h := range a.Stack {
		d.Say("  %d %s at %s, %s away", i+1, h.Node, h.Address, time.Duration(h.RTT).Round(10*time.Microsecond))
	}
	d.figures.add(nodes(a.Stack) == "gw1 absent, gw2 absent", "a probe names the nodes on the way, in its order", "%s", nodes(a.Stack))
	return nil
}

func (d *signalRun) monitor(ctx context.Context) error {
	d.Say("onpath signal setup --toward %s netmonitor.txt", userAgent)
	began := time.Now()
	a, err := d.signal(ctx, "setup", d.file("netmonitor.txt"))
	if err != nil {
		return err
	}
	d.figures.Install = time.Since(began)
	d.figures.add(nodes(a.Stack) == "gw1 installed, gw2 installed", "one message installs NetMonitor on the way", "%s, in %s",
		nodes(a.Stack), round(d.figures.Install))
	err = d.Testbed.WaitFor(ctx, "Kamailio answers", time.Minute, func() (bool, error) {
		good, _, err := d.sipp(ctx, "invite.xml", 1, 1)
		return good == 1, err
	})
	if err != nil {
		return err
	}
	calls := d.kamailio("invite")
	good, _, err := d.sipp(ctx, "invite.xml", callsMade, 20)
	if err != nil {
		return err
	}
	d.figures.add(good == callsMade && d.kamailio("invite") >= calls+callsMade, "calls reach Kamailio past the monitor",
		"%d of %d", good, callsMade)
	log := filepath.Join(d.Dir, "collector.log")
	err = d.Testbed.WaitFor(ctx, "NetMonitor's counts come", time.Minute, func() (bool, error) {
		b, err := os.ReadFile(log)
		return strings.Contains(string(b), userAgent+" > "+publisherAddress), err
	})
	b, _ := os.ReadFile(log)
	last := b[strings.LastIndex(strings.TrimSpace(string(b)), "\n")+1:]
	d.figures.add(err == nil, "its counts reach the publisher", "%s", strings.TrimSpace(string(last)))
	var list []onpath.Lease
	err = d.Testbed.WaitFor(ctx, "the operator sees the leases", time.Minute, func() (bool, error) {
		err := d.Testbed.Get(ctx, &list, "leases")
		return len(list) == 2, err
	})
	d.figures.add(err == nil, "the operator sees them as leases", "%d", len(list))
	return ctx.Err()
}

// sipp makes calls by a scenario, each from a port of its own; it counts those that went well.
func (d *signalRun) sipp(ctx context.Context, scenario string, calls, rate int, more ...string) (good, bad int, err error) {
	const sockets = 2 * agents
	args := []string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec sipp "$@"`, 2*sockets), "sipp", publisherAddress + ":5060",
		"-sf", d.file(scenario), "-m", strconv.Itoa(calls), "-r", strconv.Itoa(rate), "-l", strconv.Itoa(calls), "-i", userAgent,
		"-t", "un", "-max_socket", strconv.Itoa(sockets), "-nostdin", "-recv_timeout", "4000", "-timeout", "30s",
		"-trace_stat", "-fd", "1", "-stf", filepath.Join(d.Dir, scenario+".csv")}
	out, err := d.Testbed.Exec(ctx, usersHost, append(args, more...)...)
	if ctx.Err() != nil {
		return 0, 0, ctx.Err()
	}
	good, bad, serr := sippCounts(filepath.Join(d.Dir, scenario+".csv"))
	if serr != nil {
		return 0, 0, fmt.Errorf("sipp %s: %w: %s", scenario, firstOf(err, serr), out)
	}
	return good, bad, nil
}

// sippCounts reads the last line of SIPp's statistics.
func sippCounts(file string) (good, bad int, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, err
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	names, values := strings.Split(lines[0], ";"), strings.Split(lines[len(lines)-1], ";")
	at := func(name string) int {
		i := slices.Index(names, name)
		if i < 0 || i >= len(values) {
			return -1
		}
		n, _ := strconv.Atoi(values[i])
		return n
	}
	return at("SuccessfulCall(C)"), at("FailedCall(C)"), nil
}

// kamailio counts lines in its log.
func (d *signalRun) kamailio(what string) int {
	b, _ := os.ReadFile(filepath.Join(d.Dir, "kamailio.log"))
	return strings.Count(string(b), what+" from "+userAgent)
}

func (d *signalRun) answer(ctx context.Context) error {
	before := d.kamailio("invite")
	d.Say("onpath publisher sip beside Kamailio: at a user's first keep-alive, SETUP by keepalive.txt")
	t := d.Testbed
	err := t.Start("keepalive", publisherHost, t.Bin(), "publisher", "sip", "--log", filepath.Join(d.Dir, "kamailio.log"),
		"--nodes", d.file("nodes"), "--key", d.file("publisher.key"), d.file("keepalive.txt"))
	if err != nil {
		return err
	}
	if _, _, err := d.sipp(ctx, "keepalive.xml", 1, 1); err != nil {
		return err
	}
	err = t.WaitFor(ctx, "the responder is installed", time.Minute, func() (bool, error) {
		b, err := os.ReadFile(filepath.Join(d.Dir, "keepalive.log"))
		return strings.Contains(string(b), "KeepAlive"), err
	})
	if err != nil {
		return err
	}
	first := d.kamailio("keepalive")
	d.figures.add(first == 1, "the first keep-alive reaches Kamailio", "%d", first)
	d.Say("%d user agents of SIPp, a port of its own each, send one keep-alive each", agents)
	d.figures.Sent = agents
	// Each keeps its port until all have begun.
	if d.figures.Answered, _, err = d.sipp(ctx, "keepalive.xml", agents, 400, "-d", "6000"); err != nil {
		return err
	}
	d.figures.Reached = d.kamailio("keepalive") - first
	d.figures.add(d.figures.Answered == agents, "every keep-alive is answered", "%d of %d", d.figures.Answered, agents)
	d.figures.add(d.figures.Reached*100 <= agents, "and hardly any reaches Kamailio", "%d of %d", d.figures.Reached, agents)
	good, _, err := d.sipp(ctx, "invite.xml", callsMade, 20)
	if err != nil {
		return err
	}
	d.figures.add(good == callsMade && d.kamailio("invite") >= before+callsMade, "calls still arrive", "%d of %d", good, callsMade)
	return nil
}

func (d *signalRun) trigger(ctx context.Context) error {
	d.Say("onpath signal trigger --toward %s netmonitor.txt", userAgent)
	a, err := d.signal(ctx, "trigger", d.file("netmonitor.txt"))
	if err != nil {
		return err
	}
	back := []hop{}
	if n := len(a.Stack); n > 0 {
		back = a.Stack[n-1].Back
	}
	d.figures.add(nodes(back) == "gw3 installed, gw1 prolonged", "a request that the last node sends back reaches the node on the way back",
		"%s; back %s", nodes(a.Stack), nodes(back))
	a, err = d.signal(ctx, "remove", "NetMonitor_1.0.0")
	if err != nil {
		return err
	}
	d.figures.add(nodes(a.Stack) == "gw1 removed, gw2 removed", "REMOVE ends a lease at once", "%s", nodes(a.Stack))
	return nil
}

// alone kills the server, and has a module installed.
func (d *signalRun) alone(ctx context.Context) error {
	d.Say("kill -9 of the operator's server, and another module")
	if err := d.Testbed.Kill("server", syscall.SIGKILL); err != nil {
		return err
	}
	text, err := os.ReadFile(d.file("netmonitor.txt"))
	if err != nil {
		return err
	}
	other := strings.Replace(strings.Replace(string(text), "NetMonitor_1.0.0", "NetMonitor_2.0.0", 1), "ttl:30", "ttl:5", 1)
	if err := os.WriteFile(d.file("other.txt"), []byte(other), 0o644); err != nil {
		return err
	}
	a, err := d.signal(ctx, "setup", d.file("other.txt"))
	if err != nil {
		return err
	}
	d.figures.add(nodes(a.Stack) == "gw1 installed, gw2 installed", "nodes admit a lease with the server dead", "%s", nodes(a.Stack))
	return nil
}

// end waits until nothing is left.
func (d *signalRun) end(ctx context.Context) error {
	d.Say("the time of all leases runs out")
	var left string
	err := d.Testbed.WaitFor(ctx, "all leases have ended", time.Minute, func() (bool, error) {
		time.Sleep(200 * time.Millisecond)
		left = ""
		for _, host := range []string{"gw1", "gw2", "gw3"} {
			out, err := d.Testbed.Exec(ctx, host, "ip", "-br", "link")
			if err != nil {
				return false, err
			}
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "op") && !strings.HasPrefix(line, "onpath") || strings.HasPrefix(line, "op0") {
					left += host + " " + strings.Fields(line)[0] + " "
				}
			}
		}
		return left == "", nil
	})
	a, perr := d.signal(ctx, "probe")
	if perr != nil {
		return perr
	}
	d.figures.add(err == nil && nodes(a.Stack) == "gw1 absent, gw2 absent", "the end of their time leaves nothing",
		"%s %s", nodes(a.Stack), left)
	return ctx.Err()
}
