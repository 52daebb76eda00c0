package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab"
)

// TestbedSpec says what to set up.
type TestbedSpec struct {
	Topology *lab.Topology
	Bin      string // the onpath program; empty: the running one
	Dir      string // of logs and state; made if absent
	Server   TestbedNode
	// ServerConfig is the server's configuration file, in a folder that all hosts see; empty:
	// none.
	ServerConfig string
	// NodeConfig is the nodes', likewise.
	NodeConfig string
	Nodes      []TestbedNode
	// HostImage lets functions use the hosts' own programs (image: host).
	HostImage bool
	Progress  func(string) // called before each step; nil: silent
}

// TestbedNode is a role on a lab host.
type TestbedNode struct {
	Name     string // of the node; the server's is not used
	Host     string // in the lab
	Address  string // on the underlay; of a node "": it joins by its token alone
	Cloudlet string
	// AttachHost: chains may take the machine's own traffic, at the device of its default route.
	AttachHost bool
}

// Testbed is an emulated network with a real server and real nodes running in it,
// each as its own process, driven as a user does: through the program.
type Testbed struct {
	Lab   *lab.Lab
	spec  TestbedSpec
	mu    sync.Mutex // guards what follows
	procs map[string]*process
	kept  bool // to be left running
}

func (s *Testbed) process(name string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.procs[name]
}

const (
	serverPort    = "7443"
	readyTimeout  = time.Minute
	stopGrace     = 10 * time.Second
	socketInHost  = "/run/onpath/server.sock"
	serverProcess = "server"
	// consoleProcess serves web pages, and is there where they were asked for.
	consoleProcess = "console"
)

// SetUp brings the network, the server and the nodes up. On error, and when ctx
// ends meanwhile, everything is taken down again.
func SetUp(ctx context.Context, spec TestbedSpec) (s *Testbed, err error) {
	if spec.Bin == "" {
		if spec.Bin, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	if spec.Progress == nil {
		spec.Progress = func(string) {}
	}
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		return nil, err
	}
	for _, h := range spec.Topology.Hosts {
		if h.Private { // the program may lie where such a host has files of its own, as in /tmp
			h.Share = append(h.Share, filepath.Dir(spec.Bin))
			for _, file := range []string{spec.ServerConfig, spec.NodeConfig} {
				if file != "" {
					h.Share = append(h.Share, filepath.Dir(file))
				}
			}
		}
	}
	up := &Testbed{spec: spec, procs: map[string]*process{}}
	s = up
	defer func() {
		if err == nil {
			return
		}
		if left := up.TearDown(context.WithoutCancel(ctx)); left != nil { // then the record is needed, to try again
			err = errors.Join(err, fmt.Errorf("not all could be removed: %w", left))
			return
		}
		_ = os.Remove(filepath.Join(spec.Dir, recordFile))
	}()
	// From here on a run that is killed can be removed by a later one.
	if err := up.save(); err != nil {
		return nil, err
	}
	spec.Progress(fmt.Sprintf("network %s: %d hosts, %d links", spec.Topology.Name, len(spec.Topology.Hosts), len(spec.Topology.Links)))
	if s.Lab, err = lab.Up(ctx, spec.Topology, lab.Options{Bound: true}); err != nil {
		return nil, taken(err)
	}
	spec.Progress("server on " + spec.Server.Host)
	if err := s.StartServer(ctx); err != nil {
		return nil, err
	}
	if err := s.startNodes(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// startNodes starts the agents, four at a time.
func (s *Testbed) startNodes(ctx context.Context) error {
	names := make([]string, len(s.spec.Nodes))
	errs := make([]error, len(s.spec.Nodes))
	var wg sync.WaitGroup
	turn := make(chan struct{}, 4)
	for i, n := range s.spec.Nodes {
		names[i] = n.Name
		wg.Go(func() {
			turn <- struct{}{}
			errs[i] = s.StartNode(ctx, n.Name)
			<-turn
		})
	}
	if len(names) > 0 {
		s.spec.Progress("nodes " + strings.Join(names, ", "))
	}
	wg.Wait()
	return errors.Join(errs...)
}

// TearDown stops the agents and their instances, the server, and the network.
// It goes on after errors and returns all of them.
func (s *Testbed) TearDown(ctx context.Context) error {
	var errs []error
	for _, n := range s.spec.Nodes {
		if p := s.process(n.Name); p != nil {
			p.stop(stopGrace)
		}
		if s.Lab == nil {
			continue
		}
		if out, err := s.Lab.Exec(ctx, n.Host, s.spec.Bin, "node", "off", "--name", n.Name); err != nil {
			errs = append(errs, fmt.Errorf("node off on %s: %w: %s", n.Host, err, out))
		}
	}
	for _, p := range s.procs {
		p.stop(stopGrace)
	}
	if s.Lab != nil {
		errs = append(errs, s.Lab.Down(ctx))
	}
	return errors.Join(errs...)
}

// noConfig keeps this machine's own settings out of a testbed.
const noConfig = os.DevNull

// StartServer starts the server, or starts it again, and waits until it answers.
func (s *Testbed) StartServer(ctx context.Context) error {
	cmd := s.Lab.Command(s.spec.Server.Host, s.spec.Bin, "server", "--config", cmp.Or(s.spec.ServerConfig, noConfig), "--listen", s.spec.Server.Address+":"+serverPort)
	p, err := s.launch(serverProcess, cmd)
	if err != nil {
		return err
	}
	return s.poll(ctx, p, "the server answers", func() (bool, error) {
		_, err := s.Onpath(ctx, "get", "nodes", "-o", "json")
		return err == nil, nil
	})
}

// Join adds a node, and starts its agent.
func (s *Testbed) Join(ctx context.Context, n TestbedNode) error {
	s.spec.Nodes = append(s.spec.Nodes, n)
	if err := s.save(); err != nil {
		return err
	}
	return s.StartNode(ctx, n.Name)
}

// StartNode starts an agent, or starts it again (with the credential that it
// got the first time), and waits until the server calls it ready.
func (s *Testbed) StartNode(ctx context.Context, name string) error {
	i := slices.IndexFunc(s.spec.Nodes, func(n TestbedNode) bool { return n.Name == name })
	if i < 0 {
		return fmt.Errorf("the testbed has no node %q", name)
	}
	n := s.spec.Nodes[i]
	args := []string{"node", "--config", cmp.Or(s.spec.NodeConfig, noConfig)}
	if n.Address != "" {
		args = append(args, "--name", n.Name, "--underlay", n.Address, "--server", "https://"+s.spec.Server.Address+":"+serverPort)
	}
	if s.spec.HostImage {
		args = append(args, "--host-image")
	}
	if n.AttachHost {
		args = append(args, "--attach", "host")
	}
	if n.Cloudlet != "" && n.Address != "" {
		args = append(args, "--cloudlet", n.Cloudlet)
	}
	if s.process(n.Name) == nil {
		create := []string{"token", "create", "--node", n.Name}
		grant := []string{"--cloudlet", cmp.Or(n.Cloudlet, onpath.DefaultTenant)}
		if n.AttachHost {
			grant = append(grant, "--uplink", onpath.AnyUplink)
		}
		token, err := s.Onpath(ctx, slices.Concat(create, grant)...)
		if err != nil { // the flag is younger than version 0.1
			token, err = s.Onpath(ctx, create...)
		}
		if err != nil {
			return err
		}
		args = append(args, "--token", strings.TrimSpace(string(token)))
	}
	p, err := s.launch(n.Name, s.Lab.Command(n.Host, s.spec.Bin, args...))
	if err != nil {
		return err
	}
	return s.poll(ctx, p, "node "+n.Name+" is ready", func() (bool, error) {
		if !p.said("connected to the server") {
			return false, nil // what the server says is of the agent before
		}
		var node struct{ Status struct{ Ready bool } }
		err := s.Get(ctx, &node, "nodes", n.Name)
		return err == nil && node.Status.Ready, nil
	})
}

// Kill sends a signal to the server ("server") or a node's agent.
func (s *Testbed) Kill(name string, sig syscall.Signal) error {
	p := s.process(name)
	if p == nil || p.pid() == 0 {
		return fmt.Errorf("%s does not run", name)
	}
	p.signal(sig)
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		<-p.done
	}
	return nil
}

// Pid of the server or of an agent; 0 if it does not run.
func (s *Testbed) Pid(name string) int {
	if p := s.process(name); p != nil {
		return p.pid()
	}
	return 0
}

// Bin is the program that the testbed runs.
func (s *Testbed) Bin() string { return s.spec.Bin }

// Use makes the testbed start another build of the program from now on, which must
// lie in the same folder, and returns the one it used.
func (s *Testbed) Use(bin string) (old string) {
	old, s.spec.Bin = s.spec.Bin, bin
	return old
}

// Log is the end of what the server or an agent wrote.
func (s *Testbed) Log(name string) string {
	if p := s.process(name); p != nil {
		return p.tail(8 << 10)
	}
	return ""
}

// Socket is the server's API socket, as seen from outside its host.
func (s *Testbed) Socket() string {
	return "unix:///proc/" + strconv.Itoa(s.Pid(serverProcess)) + "/root" + socketInHost
}

// Onpath runs the program against the testbed's server and returns what it
// printed; the error has what it said.
func (s *Testbed) Onpath(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.spec.Bin, append([]string{"--server", s.Socket()}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(ctx.Err(), context.Canceled) {
		return out, ctx.Err() // by a signal: there is nothing to tell
	}
	if err != nil {
		return out, fmt.Errorf("onpath %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// Get reads an object, or the list of a kind, into v.
func (s *Testbed) Get(ctx context.Context, v any, args ...string) error {
	out, err := s.Onpath(ctx, append(append([]string{"get"}, args...), "-o", "json")...)
	if err != nil {
		return err
	}
	return json.Unmarshal(out, v)
}

// Apply applies files.
func (s *Testbed) Apply(ctx context.Context, paths ...string) error {
	args := []string{"apply"}
	for _, p := range paths {
		args = append(args, "-f", p)
	}
	_, err := s.Onpath(ctx, args...)
	return err
}

// Exec runs a command in a lab host.
func (s *Testbed) Exec(ctx context.Context, host string, args ...string) ([]byte, error) {
	return s.Lab.Exec(ctx, host, args[0], args[1:]...)
}

// Start runs a program in a lab host until the testbed is taken down; its output
// goes to NAME.log.
func (s *Testbed) Start(name, host string, args ...string) error {
	_, err := s.launch(name, s.Lab.Command(host, args[0], args[1:]...))
	return err
}

// Console serves the web pages of the testbed on this machine's loopback, and gives what
// it says of its address.
func (s *Testbed) Console(ctx context.Context) (said string, err error) {
	p, err := s.launch(consoleProcess, exec.Command(s.spec.Bin, "--server", s.Socket(), "console", "--no-open", "--listen", "127.0.0.1:0"))
	if err != nil {
		return "", err
	}
	err = s.poll(ctx, p, "the console says where it is", func() (bool, error) {
		said = strings.TrimSpace(p.tail(1 << 10))
		return p.said("http://"), nil
	})
	return strings.Trim(said, "\x00\n"), err
}

// launch starts a process of the testbed and writes down that it runs.
func (s *Testbed) launch(name string, cmd *exec.Cmd) (*process, error) {
	p, err := start(s.spec.Dir, name, cmd)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.procs[name] = p
	return p, s.save()
}

// WaitFor polls until ok, or explains what it waited for.
func (s *Testbed) WaitFor(ctx context.Context, what string, limit time.Duration, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s in vain until %s", limit, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Testbed) poll(ctx context.Context, p *process, what string, ok func() (bool, error)) error {
	err := s.WaitFor(ctx, what, readyTimeout, func() (bool, error) {
		if p.pid() == 0 {
			return false, fmt.Errorf("%s ended early:\n%s", p.name, p.tail(2<<10))
		}
		return ok()
	})
	if err != nil && p.pid() != 0 {
		return fmt.Errorf("%w; the end of %s:\n%s", err, filepath.Base(p.log), p.tail(2<<10))
	}
	return err
}

// InstanceOf is the name of a ready instance of a deployment of tenant default.
func (s *Testbed) InstanceOf(ctx context.Context, deployment string) (string, error) {
	list, err := s.Instances(ctx)
	if err != nil {
		return "", err
	}
	for _, i := range list {
		if i.Spec.Deployment == deployment && i.Status.State == onpath.InstanceReady && i.Spec.Draining.IsZero() {
			return i.Metadata.Name, nil
		}
	}
	return "", fmt.Errorf("no instance of %s is ready", deployment)
}

// Instances lists all instances.
func (s *Testbed) Instances(ctx context.Context) ([]onpath.Instance, error) {
	var list []onpath.Instance
	err := s.Get(ctx, &list, "instances")
	return list, err
}

// WaitActive waits until a chain steers traffic, telling what it waits for.
func (s *Testbed) WaitActive(ctx context.Context, chain string, limit time.Duration, tell func(string)) error {
	last := ""
	if tell == nil {
		tell = func(string) {}
	}
	err := s.WaitFor(ctx, "chain "+chain+" is active", limit, func() (bool, error) {
		var c onpath.Chain
		if err := s.Get(ctx, &c, "chains", chain); err != nil {
			return false, err
		}
		for _, cond := range c.Status.Conditions {
			if cond.Type == "Active" && cond.Message != "" && cond.Message != last {
				last = cond.Message
				tell(last)
			}
		}
		return c.Status.Active, nil
	})
	if err != nil && last != "" {
		return fmt.Errorf("%w; its status says: %s", err, last)
	}
	return err
}

// taken says what to do where another demonstration, with a folder of its own, has the network.
func taken(err error) error {
	var e *onpath.Error
	if !errors.As(err, &e) || e.Code != onpath.CodeExists {
		return err
	}
	return &onpath.Error{Code: e.Code, Message: e.Message, Cause: err,
		Remedy: "wait until the demonstration that has it ends, or remove that one with --down and the --dir of its own"}
}
