package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/config"
	"github.com/onpath/onpath/internal/roster"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/runtime/container"
	functions "github.com/onpath/onpath/runtime/ebpf"
)

func newNodeOff(g *global) *cobra.Command {
	f := &nodeFlags{}
	all := false
	c := &cobra.Command{
		Use: "off", Short: "Take everything of a node off this machine; traffic is ordinary again",
		Long: `Take everything of a node off this machine, also when all else is dead: first the
data path, so that traffic is ordinary again, then instances, devices, namespaces
and state. The agent must not run. Doing it again does no harm.

--all takes off every node whose agent was started in the present network
namespace since the machine booted, whatever its name and folders.`,
		Example: examples("sudo systemctl stop onpath-node; sudo onpath node off", "sudo onpath node off --name fra1-gw1 --state-dir /var/lib/onpath/gw1", "sudo onpath node off --all"),
		Args:    cobra.NoArgs,
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
				removed, errs = append(removed, r...), append(errs, err)
			}
			err = errors.Join(errs...)
			return errors.Join(g.print(c, removed, func(w io.Writer) error {
				if len(removed) == 0 && err == nil {
					fmt.Fprintln(w, "nothing of this node is on the machine")
				}
				for _, r := range removed {
					fmt.Fprintln(w, "removed", r)
				}
				return nil
			}), err)
		},
	}
	c.Flags().StringVar(&f.path, "config", "", "configuration file (default "+config.DefaultPath+", if it is there)")
	c.Flags().StringVar(&f.set.Name, "name", "", "name of the node (default the machine's)")
	c.Flags().StringVar(&f.set.StateDir, "state-dir", "", "the agent's (default "+config.DefaultNodeDir+")")
	c.Flags().StringVar(&f.set.Containerd, "containerd", "", "socket of the containerd that was used (default a private one)")
	c.Flags().BoolVar(&all, "all", false, "every node whose agent was started in this network namespace")
	return c
}

// toTakeOff are the nodes that are meant: that of file and flags, or all of the
// present network namespace.
func (f *nodeFlags) toTakeOff(all bool) ([]*config.Node, error) {
	if !all {
		conf, err := config.Load(f.path)
		if err != nil {
			return nil, err
		}
		return []*config.Node{&conf.Node}, f.apply(&conf.Node)
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
	path := ebpf.Options{Name: conf.Name, Log: log}
	parts := []node.OffPart{{What: "the data path", Found: ebpf.Installed(path), Remove: func(ctx context.Context) error { return ebpf.Remove(ctx, path) }}}
	fn := functionOptions(conf, log)
	if _, err := os.Stat(fn.Dir); err == nil {
		if d, err := functions.New(fn); err != nil {
			log.Warn("ebpf functions cannot be looked for here", "error", err)
		} else {
			parts = append(parts, node.OffPart{What: "the tables of ebpf functions", Found: true, Remove: d.Remove})
		}
	}
	o := containerOptions(conf, nil, log)
	_, err := os.Stat(o.StateDir)
	// A private containerd without a folder has nothing; it is not started for that.
	if found := err == nil; found || conf.Containerd != "" {
		if d, err := container.New(ctx, o); err != nil {
			log.Warn("containers cannot be looked for here", "error", err)
		} else {
			parts = append(parts, node.OffPart{What: "the instances of the container runtime", Found: found, Remove: d.Remove}) // closes d
		}
	}
	removed, err := node.Off(ctx, node.OffOptions{Name: conf.Name, StateDir: conf.StateDir, Parts: parts, Log: log})
	if err != nil {
		return removed, err
	}
	dir, err := filepath.Abs(conf.StateDir)
	if err != nil {
		return removed, err
	}
	return removed, roster.Leave(roster.Dir, dir)
}
