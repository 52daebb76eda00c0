package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/cli/roster"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/node"
)

// nodeFlags override the file's node part.
type nodeFlags struct {
	path     string
	set      config.Node
	underlay string
	mtu      int
	port     uint16
	tunnel   string
	uplinks  []string
	attach   string
}

func (f *nodeFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.set.Name, "name", "", "name of the node (default the token's, else the machine's)")
	fl.StringVar(&f.set.Cloudlet, "cloudlet", "", "cloudlet it belongs to (default the token's, else default)")
	fl.StringArrayVar(&f.uplinks, "uplink", nil, "DEVICE[:ATTACH[:SIDE]] with transit traffic; attach is router (default), bridge, "+
		"arm, tap or host; may be repeated")
	fl.StringVar(&f.attach, "attach", "", "host: this machine's own traffic, at the device of its default route, as --uplink DEVICE:host")
	fl.StringVar(&f.underlay, "underlay", "", "address by which other nodes reach this one (default guessed)")
	fl.IntVar(&f.mtu, "underlay-mtu", 0, "MTU of the underlay, in bytes (default its device's)")
	fl.Uint16Var(&f.port, "tunnel-port", 0, fmt.Sprintf("UDP port of tunnels, the same in a whole cloudlet (default %d)",
		onpath.DefaultTunnelPort))
	fl.StringVar(&f.tunnel, "tunnel", "", "how packets get to other nodes: vxlan (clear text, one IP hop), wireguard, or auto (default), "+
		"as each of them can be reached")
	fl.StringVar(&f.set.Containerd, "containerd", "", "socket of a containerd (default a private one)")
	fl.BoolVar(&f.set.HostImage, "host-image", false, "permit functions with image: host, which see this machine's files")
	fl.BoolVar(&f.set.SetForwarding, "set-forwarding", false, "turn IP forwarding on for routing uplinks")
}

// apply puts the flags over the file's part.
func (f *nodeFlags) apply(n *config.Node) error {
	if err := checkNameFlag(f.set.Name); err != nil {
		return err
	}
	override(&n.Name, f.set.Name)
	override(&n.Cloudlet, f.set.Cloudlet)
	override(&n.StateDir, f.set.StateDir)
	override(&n.Server, f.set.Server)
	override(&n.Containerd, f.set.Containerd)
	override(&n.Metrics, f.set.Metrics)
	override(&n.Log, f.set.Log)
	if f.set.Token != "" || f.set.TokenFile != "" {
		n.Token, n.TokenFile = f.set.Token, f.set.TokenFile
	}
	n.HostImage = n.HostImage || f.set.HostImage
	n.SetForwarding = n.SetForwarding || f.set.SetForwarding
	if f.underlay != "" {
		if err := n.Underlay.Address.UnmarshalText([]byte(f.underlay)); err != nil {
			return badUsage("--underlay %s is not an IP address; write one such as 10.255.0.7", f.underlay)
		}
	}
	if f.mtu != 0 {
		n.Underlay.MTU = f.mtu
	}
	if f.port != 0 {
		n.Underlay.Port = f.port
	}
	override(&n.Underlay.Tunnel, f.tunnel)
	if err := f.attachHost(); err != nil {
		return err
	}
	if len(f.uplinks) > 0 {
		n.Uplinks = nil
	}
	for _, s := range f.uplinks {
		u, err := config.ParseUplink(s)
		if err != nil {
			return err
		}
		n.Uplinks = append(n.Uplinks, u)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("this machine's name: %w", err)
	}
	return n.Complete(host)
}

// attachHost names the device of the default route as the uplink of the machine's own traffic.
func (f *nodeFlags) attachHost() error {
	switch {
	case f.attach == "":
		return nil
	case f.attach != string(onpath.AttachHost):
		return badUsage("--attach %s: write host, or name a device with --uplink", f.attach)
	}
	device, err := config.OwnDevice()
	if err != nil {
		return badUsage("--attach host: %w; name the device with --uplink DEVICE:host", err)
	}
	f.uplinks = append(f.uplinks, device+":"+string(onpath.AttachHost))
	return nil
}

func newNode(g *global) *cobra.Command {
	f := &nodeFlags{}
	c := &cobra.Command{
		Use: "node", Short: "Run the node: it runs instances and steers packets here", GroupID: groupRun,
		Long: `Run the node: it runs instances and steers packets on this machine, in the network
namespace it is started in, as the server plans. Nothing is intercepted unless
uplinks are named here or in the Node object.

Instances and the data path outlive the agent: stop it, upgrade it, start it
again, and no packet is lost. "onpath node off" takes everything away.`,
		Example: examples("sudo onpath node", "sudo onpath node --server https://10.255.0.1:7443 --token WORD --underlay 10.255.0.7 "+
			"--uplink eth0 --uplink eth1", "sudo onpath node off"),
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noCommand(c, args)
			}
			if err := needsRoot(c); err != nil {
				return err
			}
			conf, err := config.Load(f.path)
			if err != nil {
				return err
			}
			f.set.Server = g.server
			if err := f.apply(&conf.Node); err != nil {
				return err
			}
			log := newLog(conf.Node.Log).With("role", "node", "node", conf.Node.Name)
			return runNode(c.Context(), &conf.Node, "", log)
		},
	}
	f.add(c)
	c.Flags().StringVar(&f.path, "config", "", "configuration file (default "+config.DefaultPath+", if it is there)")
	c.Flags().StringVar(&f.set.StateDir, "state-dir", "",
		"where the plan and the instances' records are kept, one agent each (default "+config.DefaultNodeDir+")")
	c.Flags().StringVar(&f.set.Token, "token", "",
		"join token, needed once for a server on another machine; others on this one see it in ps")
	c.Flags().StringVar(&f.set.TokenFile, "token-file", "", "file with the join token")
	c.Flags().StringVar(&f.set.Metrics, "metrics", "", "address:port for Prometheus, plain HTTP (default none)")
	c.Flags().StringVar(&f.set.Log, "log", "", "debug, info, warn or error (default info)")
	c.AddCommand(newNodeOff(g), newNodeAccept(g))
	return c
}

// checkNameFlag refuses a --name that no node can have.
func checkNameFlag(name string) error {
	if name == "" {
		return nil
	}
	if e := config.CheckName(name); e != nil {
		return badUsage("--name: %w", e)
	}
	return nil
}

// runNode runs the agent until ctx ends, and leaves data path and instances.
func runNode(ctx context.Context, conf *config.Node, listens string, log *slog.Logger) error {
	letGo, err := claimNode(conf, log)
	if err != nil {
		return err
	}
	defer letGo() // after the data path has been let go of
	if err := noOther(conf.Name, log); err != nil {
		return err
	}
	if err := makeStateDir("node.stateDir", conf.StateDir); err != nil {
		return err
	}
	release, err := node.Hold(conf.StateDir)
	if err != nil {
		return err
	}
	defer release() // likewise
	var metrics net.Listener
	if conf.Metrics != "" {
		if metrics, err = listen("node.metrics", conf.Metrics); err != nil {
			return err
		}
		defer metrics.Close()
	}
	enlist(conf, log)
	cl, err := nodeClient(ctx, conf, log)
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := findUnderlay(ctx, conf, cl, log); err != nil {
		return err
	}
	spec, err := conf.Spec()
	if err != nil {
		return err
	}
	if err := checkBlocks(conf.Blocks); err != nil {
		return err
	}
	path, err := ebpf.New(ebpf.Options{Name: conf.Name, Log: log, Flows: conf.Flows, Pending: conf.PendingFlows})
	if err != nil {
		return err
	}
	defer closing(log, "data path", path.Close)
	agent, err := node.New(node.Options{
		Name: conf.Name, Spec: spec, StateDir: conf.StateDir, Open: openRuntimes(conf, cl, log), Datapath: path,
		Dial: func(ctx context.Context, a node.Handler) node.Session {
			return session.Dial(ctx, session.Options{Connect: connecting(cl, a), Hello: a.Hello, Logger: log}, a)
		},
		Held: true, Version: versionString(), Log: log, SetForwarding: conf.SetForwarding, HostImage: conf.HostImage,
		Blocks: offeredBlocks(conf), ModuleSources: plain(conf.ModuleSources),
		FaultKeeper: keeperCommand(log),
		Secrets: func(ctx context.Context, tenant, instance string) (map[string][]byte, error) {
			return cl.Secrets(ctx, conf.Name, tenant, instance)
		},
	})
	if err != nil {
		return err
	}
	if _, err := netip.ParseAddrPort(cl.Server()); err == nil {
		listens = cl.Server()
	}
	if listens != "" {
		agent.SetControl(ctx, listens) // already in the first configuration
	}
	registry := newRegistry()
	if err := agent.Register(registry); err != nil {
		return err
	}
	if len(spec.Uplinks) == 0 {
		log.Info("no uplink is named here: no traffic is intercepted, unless the Node object names some", "remedy",
			"name uplinks with --uplink, or in the configuration file")
	}
	tasks := []func(context.Context) error{agent.Run, func(ctx context.Context) error { cl.KeepFresh(ctx, log); return nil }}
	if metrics != nil {
		tasks = append(tasks, metricsTask(metrics, registry, agent.Health))
	}
	return together(ctx, tasks...)
}

// connecting opens connections to the server that the node's own chains do not take.
func connecting(cl *client.Client, a node.Handler) func(context.Context) (net.Conn, error) {
	if cl.Local() {
		return cl.Dial
	}
	return func(ctx context.Context) (net.Conn, error) {
		a.SetControl(ctx, cl.Server())
		return cl.Dial(ctx)
	}
}

// findUnderlay sets the underlay address if none is given: what the last plan had, else
// the one by which the machine reaches the server, once there is a way to it.
func findUnderlay(ctx context.Context, conf *config.Node, cl *client.Client, log *slog.Logger) error {
	if !conf.Underlay.Address.IsValid() {
		conf.Underlay.Address = node.PlannedUnderlay(conf.StateDir)
	}
	if conf.Underlay.Address.IsValid() {
		return nil
	}
	for waited := false; ; waited = true {
		a, err := config.OwnAddress(), error(nil)
		if !cl.Local() {
			a, err = config.AddressTowards(cl.Server())
		}
		if err == nil {
			conf.Underlay.Address = a
			log.Info("no underlay address is given, this one is used", "address", a)
			return nil
		}
		if !waited {
			log.Warn("no underlay address is given, and this machine has no way to the server yet by which to find one; it is tried "+
				"again every second", "server", cl.Server(), "err", err, "remedy",
				"wait for the network, or give the address with --underlay")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// claimNode makes sure that nobody else works for the node of that name in this
// network namespace or with what is pinned of it, whatever the state folder, before
// anything is touched, until it is let go of.
func claimNode(conf *config.Node, log *slog.Logger) (letGo func(), err error) {
	dir, err := filepath.Abs(conf.StateDir)
	if err != nil {
		return nil, fmt.Errorf("find the state folder: %w", err)
	}
	release, err := node.Claim(conf.Name, dir, log)
	if err != nil {
		return nil, err
	}
	free, err := ebpf.Hold(ebpf.Options{Name: conf.Name})
	if err != nil {
		release()
		return nil, err
	}
	return func() { free(); release() }, nil
}

// noOther makes sure that no node of another name has a data path in this network
// namespace: both would steer what comes by the same devices, one after the other.
func noOther(name string, log *slog.Logger) error {
	here, err := roster.Here()
	if err != nil {
		return err
	}
	entries, err := roster.In(roster.Dir, here)
	if err != nil {
		log.Warn("another node in this network namespace would not be noticed", "err", err)
	}
	for _, e := range entries {
		if e.Name != name && ebpf.Installed(ebpf.Options{Name: e.Name}) {
			err := onpath.Errorf(onpath.CodeConflict, "node %s is in this network namespace already, and a machine is one node", e.Name)
			err.Remedy = fmt.Sprintf("go on with that name (--name %[1]s), or take it off first: onpath node off --name %[1]s "+
				"--state-dir %[2]s", e.Name, e.StateDir)
			return err
		}
	}
	return nil
}

// keeperCommand is this program, as an agent starts it beside a fault.
func keeperCommand(log *slog.Logger) []string {
	self, err := os.Executable()
	if err != nil {
		log.Warn("faults end only while an agent runs", "err", err)
		return nil
	}
	return []string{self, "fault", "keep"}
}

// nodeClient reaches the server that the node belongs to.
func nodeClient(ctx context.Context, conf *config.Node, log *slog.Logger) (*client.Client, error) {
	return client.ForNode(ctx, client.NodeOptions{
		Server: conf.Server, Token: conf.Token, Name: conf.Name, Identity: conf.Identity(),
		Socket: config.DefaultSocket, Log: log,
	})
}
