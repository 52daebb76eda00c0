package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/internal/config"
)

func newUp(*global) *cobra.Command {
	server, n := &serverFlags{}, &nodeFlags{}
	var dir, level string
	c := &cobra.Command{
		Use: "up", Short: "Run server and node on this machine, in one process", GroupID: groupRun,
		Long: `Run server and node on this machine, in one process, with an embedded store.
Nothing is intercepted until an uplink is named.`,
		Example: examples("sudo onpath up", "sudo onpath up --uplink eth0 --uplink eth1", "sudo onpath up --listen '[::]:7443'   # other machines can join"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
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
			log := newLog(conf.Server.Log)
			if len(conf.Node.Uplinks) == 0 {
				fmt.Fprintln(c.ErrOrStderr(), "onpath: no uplink is named, so no traffic is intercepted; name devices with --uplink, or write them into the Node object")
			}
			return together(c.Context(),
				func(ctx context.Context) error { return serve(ctx, &conf.Server, log.With("role", "server")) },
				func(ctx context.Context) error {
					return runNode(ctx, &conf.Node, log.With("role", "node", "node", conf.Node.Name))
				})
		},
	}
	server.add(c)
	n.add(c)
	c.Flags().StringVar(&dir, "state-dir", "", "where server and node keep their state, in folders of their own (default "+filepath.Dir(config.DefaultServerDir)+")")
	c.Flags().StringVar(&level, "log", "", "debug, info, warn or error (default info)")
	return c
}
