package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/cli/roster"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/lab"
	"github.com/onpath/onpath/node"
)

func newNodeOff(g *global) *cobra.Command {
	f := &nodeFlags{}
	all := false
	c := &cobra.Command{
		Use: "off", Short: "Take all of a node off this machine; traffic is ordinary again",
		Long: `Take everything of a node off this machine, also when all else is dead: first the
data path, so that traffic is ordinary again, then instances, devices, namespaces
and state. The agent must not run. Doing it again does no harm. Without --name and a
name in the configuration it is the node whose state folder it is. Two devices
attached as a bridge are joined by the data path alone, and parted with it, unless
both are in a bridge of the kernel.

--all takes off every node whose agent was started in the present network
namespace since the machine booted, whatever its name and folders.`,
		Example: examples("sudo systemctl stop onpath-node; sudo onpath node off",
			"sudo onpath node off --name fra1-gw1 --state-dir /var/lib/onpath/gw1", "sudo onpath node off --all"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			for _, name := range []string{"config", "name", "state-dir", "containerd"} {
				if all && c.Flags().Changed(name) {
					return badUsage("--all means every node here: leave out --%s", name)
				}
			}
			if err := needsRoot(c); err != nil {
				return err
			}
			nodes, err := f.toTakeOff(all)
			if err != nil {
				return err
			}
			removed := []string{}
			var errs []error
			for _, n := range nodes {
				r, err := nodeOff(c.Context(), n, newLog("warn"))
				for _, what := range r {
					removed = append(removed, what+" of node "+n.Name)
				}
				errs = append(errs, err)
			}
			err = errors.Join(errs...)
			return errors.Join(g.print(c, removed, func(w io.Writer) error {
				if len(removed) == 0 && err == nil {
					nothingLeft(w, nodes)
				}
				for _, r := range removed {
					fmt.Fprintln(w, "removed", r)
				}
				return nil
			}), err)
		},
	}
	c.Flags().StringVar(&f.path, "config", "", "configuration file (default "+config.DefaultPath+", if it is there)")
	c.Flags().StringVar(&f.set.Name, "name", "", "name of the node (default the state folder's, else the machine's)")
	c.Flags().StringVar(&f.set.StateDir, "state-dir", "", "the agent's (default "+config.DefaultNodeDir+")")
	c.Flags().StringVar(&f.set.Containerd, "containerd", "", "socket of the containerd that was used (default a private one)")
	c.Flags().BoolVar(&all, "all", false, "every node whose agent was started in this network namespace")
	return c
}

// nothingLeft says so, and names the nodes of which there is something.
func nothingLeft(w io.Writer, nodes []*config.Node) {
	switch len(nodes) {
	case 0:
		fmt.Fprintln(w, "no node's agent was started in this network namespace")
	case 1:
		fmt.Fprintf(w, "nothing of node %s is on the machine\n", nodes[0].Name)
	default:
		fmt.Fprintln(w, "nothing of these nodes is on the machine")
	}
	if names := ebpf.Names(""); len(names) > 0 {
		fmt.Fprintf(w, "there are data paths of %s: onpath node off --name NAME takes one off\n", strings.Join(names, ", "))
	}
}

// toTakeOff are the nodes that are meant: that of file and flags, or all of the
// present network namespace.
func (f *nodeFlags) toTakeOff(all bool) ([]*config.Node, error) {
	if !all {
		conf, err := config.Load(f.path)
		if err != nil {
			return nil, err
		}
		named := f.set.Name != "" || conf.Node.Name != ""
		if err := f.apply(&conf.Node); err != nil {
			return nil, err
		}
		return []*config.Node{&conf.Node}, identify(&conf.Node, named)
	}
	here, err := roster.Here()
	if err != nil {
		return nil, err
	}
	entries, err := roster.In(roster.Dir, here)
	var list []*config.Node
	for _, e := range entries {
		list = append(list, &config.Node{Name: e.Name, StateDir: e.StateDir, Containerd: e.Containerd})
	}
	return list, err
}

// identify makes sure that name and state folder are of one node, and that this
// is its network namespace. Else its instances would go and its data path stay,
// which leads traffic to them. A name that nobody gave is the folder's.
func identify(n *config.Node, named bool) error {
	dir, err := filepath.Abs(n.StateDir)
	if err != nil {
		return fmt.Errorf("find the state folder: %w", err)
	}
	entry, listErr := roster.Of(roster.Dir, dir)
	owner, err := node.Owner(dir)
	if entry != nil && (owner == "" || err != nil) {
		owner, err = entry.Name, nil
	}
	switch {
	case err != nil && !named:
		e := onpath.Errorf(onpath.CodeInvalid, "nothing tells whose state folder %s is: %w", dir, err)
		e.Remedy = "name the node with --name"
		return e
	case owner != "" && owner != n.Name && named:
		e := onpath.Errorf(onpath.CodeInvalid, "the state folder %s is of node %s, not of %s", dir, owner, n.Name)
		e.Remedy = "say --name " + owner + ", or name the folder of " + n.Name + " with --state-dir"
		return e
	case owner != "":
		n.Name = owner
	}
	if entry == nil {
		return listErr
	}
	here, err := roster.Here()
	if err != nil || entry.NetNS == here {
		return err
	}
	if path, alive := entry.NetNS.Alive(); alive {
		e := onpath.Errorf(onpath.CodeInvalid, "node %s is in another network namespace, and so is its data path", n.Name)
		e.Remedy = "run it there: " + insideOf(path) + " onpath node off"
		return e
	}
	return nil
}

// insideOf is the command by which another one runs in the network namespace of
// path: that of a lab's host, of ip netns, or else of some process.
func insideOf(path string) string {
	dir, file := filepath.Split(path)
	host, isHost := strings.CutSuffix(file, ".net")
	if l := filepath.Dir(filepath.Dir(dir)); isHost && filepath.Dir(l) == lab.DefaultStateDir {
		return fmt.Sprintf("onpath lab exec --lab %s %s", filepath.Base(l), host)
	}
	if filepath.Clean(dir) == "/run/netns" {
		return "ip netns exec " + file
	}
	return "nsenter --net=" + path
}

// enlist notes that an agent begins here. It works without, too.
func enlist(conf *config.Node, log *slog.Logger) {
	dir, err := filepath.Abs(conf.StateDir)
	e := roster.Entry{Name: conf.Name, StateDir: dir, Containerd: conf.Containerd}
	if err == nil {
		e.NetNS, err = roster.Here()
	}
	if err == nil {
		err = roster.Enter(roster.Dir, e)
	}
	if err != nil {
		log.Warn("onpath node off --all and onpath lab down will not know this node", "err", err)
	}
}

func nodeOff(ctx context.Context, conf *config.Node, log *slog.Logger) ([]string, error) {
	letGo, err := claimNode(conf, log)
	if err != nil {
		return nil, err
	}
	defer letGo()
	path := ebpf.Options{Name: conf.Name, Log: log}
	parts := []node.OffPart{{What: "the data path", Found: ebpf.Installed(path),
		Remove: func(ctx context.Context) error { return ebpf.Remove(ctx, path) }}}
	parts = append(parts, leftovers(ctx, conf, log)...)
	removed, err := node.Off(ctx, node.OffOptions{Name: conf.Name, StateDir: conf.StateDir, Parts: parts, Log: log})
	if err != nil {
		return removed, err
	}
	dir, err := filepath.Abs(conf.StateDir)
	if err != nil {
		return removed, err
	}
	err = roster.Leave(roster.Dir, dir)
	tidyUp()
	return removed, err
}

// tidyUp removes what would be left empty or useless of onpath: the folder of data
// paths if there is none, and the socket of a server that was killed.
func tidyUp() {
	_ = os.Remove(ebpf.DefaultPinPath) // not empty: of other nodes
	_ = os.Remove(bpfobject.PinPath)
	api.RemoveDeadSocket(config.DefaultSocket)
	_ = os.Remove(filepath.Dir(config.DefaultSocket)) // likewise
}
