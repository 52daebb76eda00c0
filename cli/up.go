package cli

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/config"
)

func newUp(*global) *cobra.Command {
	server, n := &serverFlags{}, &nodeFlags{}
	var dir, level string
	c := &cobra.Command{
		Use: "up", Short: "Run server and node on this machine, in one process", GroupID: groupRun,
		Long: `Run server and node on this machine, in one process, with an embedded store.
Nothing is intercepted until an uplink is named. A device named with --uplink must
be there; one of the configuration file or the Node object may come later.`,
		Example: examples("sudo onpath up", "sudo onpath up --uplink eth0 --uplink eth1",
			"sudo onpath up --listen '[::]:7443'   # other machines can join"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			outliveReader()
			if err := needsRoot(c); err != nil {
				return err
			}
			if dir != "" {
				server.set.StateDir, n.set.StateDir = filepath.Join(dir, "server"), filepath.Join(dir, "node")
			}
			server.set.Log, n.set.Log = level, level
			conf, err := server.config()
			if err != nil {
				return err
			}
			n.set.Server = "unix://" + conf.Server.Socket
			if err := n.apply(&conf.Node); err != nil {
				return err
			}
			if err := n.devicesExist(); err != nil {
				return err
			}
			log := newLog(conf.Server.Log)
			if len(conf.Node.Uplinks) == 0 {
				fmt.Fprintln(c.ErrOrStderr(), "onpath: no uplink is named, so no traffic is intercepted; name devices with --uplink, "+
					"or write them into the Node object")
			}
			begun := make(chan struct{})
			return together(c.Context(),
				func(ctx context.Context) error {
					return serve(ctx, &conf.Server, log.With("role", "server"), sync.OnceFunc(func() { close(begun) }))
				},
				func(ctx context.Context) error {
					select {
					case <-begun: // a server that cannot run leaves nothing of a node behind
					case <-ctx.Done():
						return nil
					}
					return runNode(ctx, &conf.Node, conf.Server.Listen, log.With("role", "node", "node", conf.Node.Name))
				})
		},
	}
	server.add(c)
	n.add(c)
	c.Flags().StringVar(&dir, "state-dir", "",
		"where server and node keep their state, in folders of their own (default "+filepath.Dir(config.DefaultServerDir)+")")
	c.Flags().StringVar(&server.set.Metrics, "metrics", "", "address:port for Prometheus, plain HTTP: what the server knows (default none)")
	c.Flags().StringVar(&n.set.Metrics, "node-metrics", "", "likewise: what the node counts (default none)")
	c.Flags().StringVar(&level, "log", "", "debug, info, warn or error (default info)")
	return c
}

// devicesExist refuses a device of --uplink that is not there, before anything is
// begun: whoever writes it by hand has mistyped it.
func (f *nodeFlags) devicesExist() error {
	if len(f.uplinks) == 0 {
		return nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("the network devices of this machine: %w", err)
	}
	var names []string
	for _, d := range all {
		if d.Flags&net.FlagLoopback == 0 {
			names = append(names, d.Name)
		}
	}
	for _, given := range f.uplinks {
		u, err := config.ParseUplink(given)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(d net.Interface) bool { return d.Name == u.Device }) {
			continue
		}
		hint := "there are " + strings.Join(names, ", ")
		if len(names) == 0 {
			hint = "there is none but loopback"
		}
		if w := onpath.Nearest(u.Device, names); w != "" {
			hint = "did you mean " + w + "? " + hint
		}
		return badUsage("--uplink %s: this network namespace has no device %s; %s", given, u.Device, hint)
	}
	return nil
}
