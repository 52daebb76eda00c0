package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/ociimage"
	"github.com/onpath/onpath/lab"
)

func scaleDemonstration() Demonstration {
	return Demonstration{
		Name:  "scale",
		Short: "Show a chain that grows and shrinks, flows that stay in a rack",
		Long: `Emulate a network with a real server and three real nodes, and raise the load of a
chain with two different bottlenecks four-fold: one function lacks processor time,
the other holds a rate. The chain grows by what the client says of the service, and
shrinks when the load is halved. Then the same load meets fixed numbers of instances,
and Figure 7 of Stratos is rebuilt in two racks.`,
		Seconds: 180,
		Needs:   append([]string{"tc"}, containers...),
		Show: func(ctx context.Context, r *Run) (Figures, error) {
			d := &scaleRun{Run: r}
			if err := d.setUp(ctx); err != nil {
				return nil, err
			}
			defer d.stop()
			if err := d.scale(ctx); err != nil {
				return nil, err
			}
			if err := d.fixed(ctx); err != nil {
				return nil, err
			}
			if err := d.racks(ctx); err != nil {
				return nil, err
			}
			d.report.check()
			return &d.report, nil
		},
	}
}

// The load, in requests a second, and what an instance of either function serves.
const (
	lowLoad       = 41
	highLoad      = 4 * lowLoad
	halfLoad      = highLoad / 2
	inspectServes = 66 // by 100m of CPU, with inspectWork for each
	inspectWork   = 1180 * time.Microsecond
	inspectCPU    = "100m"
	limitServes   = 102
	limitRate     = "116kbit" // a packet of 142 bytes for each request
	echoAddress   = "10.9.0.2:7000"
)

// scaleRun is a run of the demonstration of scaling.
type scaleRun struct {
	*Run
	report ScaleReport
	client *client.Client
	source *source
}

const scaleLab = `
name: scale
hosts:
  client:
    interfaces: {eth0: [10.1.0.11/24]}
    routes: [{to: default, via: 10.1.0.1}]
  gw1:
    mounts: private
    forwarding: on
    interfaces: {access: [10.1.0.1/24], core: [10.9.0.1/24], underlay: [10.255.0.1/24]}
  node1: {mounts: private, forwarding: on, interfaces: {underlay: [10.255.0.2/24]}, routes: auto}
  node2: {mounts: private, forwarding: on, interfaces: {underlay: [10.255.0.3/24]}, routes: auto}
  server: {mounts: private, interfaces: {underlay: [10.255.0.10/24]}}
  origin:
    interfaces: {eth0: [10.9.0.2/24]}
    routes: [{to: default, via: 10.9.0.1}]
switches: {underlay: }
links:
- {a: "client:eth0", b: "gw1:access"}
- {a: "gw1:core", b: "origin:eth0"}
- {a: "gw1:underlay", b: underlay, mtu: 1600}
- {a: "node1:underlay", b: underlay, mtu: 1600}
- {a: "node2:underlay", b: underlay, mtu: 1600}
- {a: "server:underlay", b: underlay, mtu: 1600}
`

const scaleNodes = `
apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: gw1}
spec:
  cloudlet: access
  schedulable: false
  underlay: {address: 10.255.0.1}
  uplinks:
  - {name: access, device: access, attach: router, side: access}
  - {name: core, device: core, attach: router, side: core}
---
apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: node1, labels: {rack: a}}
spec: {cloudlet: access, underlay: {address: 10.255.0.2}, capacity: {cpu: "8"}}
---
apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: node2, labels: {rack: b}}
spec: {cloudlet: access, underlay: {address: 10.255.0.3}, capacity: {cpu: "8"}}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: inspect}
spec:
  container:
    image: ./inspect
    attach: bridged
    addresses: none
    capabilities: [NET_RAW, NET_ADMIN]
    command: [%[1]s, demo, inspect, --work, %[2]s]
    env: {GOMAXPROCS: "1"}
  state: none
  packets: keep
  resources: {cpu: %[3]s, memory: 128Mi}
  health: {tcp: %[5]d}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: limit}
spec:
  container:
    image: host
    attach: routed
    addresses: none
    capabilities: [NET_ADMIN]
    command: [sh, -c, "tc qdisc replace dev eth0 root tbf rate %[4]s burst 2000 limit 3000 && touch /run/ready; trap 'exit 0' TERM; sleep infinity & wait"]
  state: none
  packets: keep
  resources: {cpu: 100m, memory: 32Mi} # its health probe runs in it, and would be throttled by less
  health: {exec: [test, -e, /run/ready], every: 1s}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: pass}
spec:
  container:
    image: host
    attach: routed
    addresses: none
    command: [sh, -c, "touch /run/ready; trap 'exit 0' TERM; sleep infinity & wait"]
  state: none
  packets: keep
  resources: {cpu: 50m, memory: 32Mi}
  health: {exec: [test, -e, /run/ready], every: 1s}
---
apiVersion: onpath/v1alpha1
kind: Hosts
metadata: {name: service}
spec: {addresses: [10.9.0.2]}
`

func (d *scaleRun) setUp(ctx context.Context) error {
	topology, err := lab.Parse(strings.NewReader(scaleLab), "scale")
	if err != nil {
		return err
	}
	err = d.SetUp(ctx, TestbedSpec{
		Topology: topology, HostImage: true,
		Server: TestbedNode{Host: "server", Address: "10.255.0.10"},
		Nodes: []TestbedNode{
			{Name: "gw1", Host: "gw1", Address: "10.255.0.1", Cloudlet: "access"},
			{Name: "node1", Host: "node1", Address: "10.255.0.2", Cloudlet: "access"},
			{Name: "node2", Host: "node2", Address: "10.255.0.3", Cloudlet: "access"},
		},
	})
	if err != nil {
		return err
	}
	if err := d.Testbed.Start("echo", "origin", d.Testbed.Bin(), "demo", "echo", echoAddress); err != nil {
		return err
	}
	d.client = client.Unix(strings.TrimPrefix(d.Testbed.Socket(), "unix://"))
	if d.source, err = d.startSource(); err != nil {
		return err
	}
	// A container of the machine's own programs does not see every folder that this one may lie in.
	if err := ociimage.WriteProgram(filepath.Join(d.Dir, "inspect"), d.Testbed.Bin()); err != nil {
		return err
	}
	return d.apply(ctx, fmt.Sprintf(scaleNodes, ociimage.Program, inspectWork, inspectCPU, limitRate, inspectReady))
}

// apply applies YAML.
func (d *scaleRun) apply(ctx context.Context, text string) error {
	file := filepath.Join(d.Dir, "scale.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	return d.Testbed.Apply(ctx, file)
}

// chain is the chain of both functions, with fixed numbers of instances or with scaling.
func (d *scaleRun) chain(ctx context.Context, inspect, limit int, scaling string) error {
	if err := d.apply(ctx, fmt.Sprintf(`
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: web}
spec:
  from: any
  to: {hosts: service}
  direction: forward
  through:
  - {function: inspect, instances: %d, drain: 1s}
  - {function: limit, instances: %d, drain: 1s}
%s`, inspect, limit, scaling)); err != nil {
		return err
	}
	return d.Testbed.WaitActive(ctx, "web", 30*time.Second, nil)
}

const scalingSpec = `  scaling:
    metric: pushed
    improve: 10%
    window: 2s
    cooldown: 3s
    elements: {inspect: {max: 6}, limit: {max: 6}}
`

// source is the client's load.
type source struct {
	p    *process
	in   *os.File
	mu   sync.Mutex
	all  []Tick
	push func(Tick, Tick)
}

// startSource starts the client, which sends nothing yet.
func (d *scaleRun) startSource() (*source, error) {
	fifo, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer fifo.Close()
	cmd := d.Testbed.Lab.Command("client", d.Testbed.Bin(), "demo", "datagrams", echoAddress)
	cmd.Stdin = fifo
	p, err := d.Testbed.launch("datagrams", cmd)
	if err != nil {
		_ = in.Close()
		return nil, err
	}
	s := &source{p: p, in: in}
	f, err := os.Open(p.log)
	if err != nil {
		return nil, err
	}
	go s.follow(f)
	return s, nil
}

// follow reads what the client tells, until it ends.
func (s *source) follow(f *os.File) {
	defer f.Close()
	r := bufio.NewReader(f)
	rest := ""
	for {
		line, err := r.ReadString('\n')
		if rest += line; err != nil {
			select {
			case <-s.p.done:
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		var t Tick
		if json.Unmarshal([]byte(rest), &t) == nil {
			s.heard(t)
		}
		rest = ""
	}
}

func (s *source) heard(t Tick) {
	s.mu.Lock()
	var before Tick
	if n := len(s.all); n > 0 {
		before = s.all[n-1]
	}
	s.all = append(s.all, t)
	push := s.push
	s.mu.Unlock()
	if push != nil && !before.At.IsZero() {
		push(before, t)
	}
}

// rate has the client ask so often in a second.
func (s *source) rate(n int) error {
	_, err := fmt.Fprintln(s.in, n)
	return err
}

// served is how many requests were answered in a second, over the last while.
func (s *source) served(last time.Duration) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) < 2 {
		return 0
	}
	end := s.all[len(s.all)-1]
	i, _ := slices.BinarySearchFunc(s.all, end.At.Add(-last), func(t Tick, at time.Time) int { return t.At.Compare(at) })
	begin := s.all[i]
	if !end.At.After(begin.At) {
		return 0
	}
	return float64(end.Served-begin.Served) / end.At.Sub(begin.At).Seconds()
}

func (d *scaleRun) stop() {
	if d.source != nil {
		_ = d.source.in.Close() // it ends by that
	}
	if d.client != nil {
		d.client.Close()
	}
}
