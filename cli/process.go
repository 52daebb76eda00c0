package cli

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/accel"
	"github.com/onpath/onpath/accel/wanopt"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/engine"
	"github.com/onpath/onpath/internal/wireguard"
	"github.com/onpath/onpath/runtime/relay"
)

// newEngine is a process that the node agent starts for each instance of a wasm function.
func newEngine(*global) *cobra.Command {
	var p engine.Process
	c := &cobra.Command{
		Use:    "engine",
		Short:  "Run the modules of one instance of a wasm function",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(c *cobra.Command, _ []string) error { return p.Main(c.Context()) },
	}
	f := c.Flags()
	f.IntVar(&p.Control, "control", 3, "the descriptor of the control socket")
	f.StringVar(&p.Empty, "empty-root", "", "a folder that becomes the root")
	f.IntVar(&p.UID, "uid", 0, "the user that the process becomes")
	f.IntVar(&p.GID, "gid", 0, "the group that the process becomes")
	return c
}

// newRelay is the process that runs a node's relays; the agent starts it.
func newRelay(*global) *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use: "relay", Short: "Relay TCP connections, as the agent tells", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			// What an earlier process left: one that lives has been asked by the agent before.
			if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			l, err := net.Listen("unix", socket)
			if err != nil {
				return err
			}
			if err := os.Chmod(socket, 0o600); err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			pins, err := accel.MakePins(socket)
			if err != nil {
				log.Warn("the relays stay in their connections", "err", err)
			}
			if err := accel.Confine(pins); err != nil {
				log.Warn("the relays keep rights that they do not need", "err", err)
			}
			h := accel.NewHost(log, pins)
			defer context.AfterFunc(c.Context(), h.End)()
			return h.Run(l)
		},
	}
	c.Flags().StringVar(&socket, "socket", "", "unix socket for the agent")
	_ = c.MarkFlagRequired("socket")
	return c
}

// newWireGuard is the process that has a node's device of WireGuard; the agent starts it.
func newWireGuard(*global) *cobra.Command {
	var socket, device string
	var mtu int
	c := &cobra.Command{
		Use: "wireguard", Short: "Have a device of WireGuard, as the agent tells", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return wireguard.Serve(c.Context(), socket, device, mtu) },
	}
	c.Flags().StringVar(&socket, "socket", "", "unix socket for the agent")
	c.Flags().StringVar(&device, "device", onpath.WireGuardDevice, "name of the device")
	c.Flags().IntVar(&mtu, "mtu", onpath.MinMTU, "its MTU")
	_ = c.MarkFlagRequired("socket")
	return c
}

func relayDir(conf *config.Node) string { return filepath.Join(conf.StateDir, "relay") }

func openRelays(_ context.Context, conf *config.Node, _ *client.Client, log *slog.Logger) (onpath.Runtime, error) {
	d, err := relay.New(relay.Options{Dir: relayDir(conf), Log: log})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// newWanopt is what the function wanopt runs in its containers.
func newWanopt(*global) *cobra.Command {
	c := wanopt.Config{Pair: "/run/onpath/pair.json", Take: 7171, Link: 7172}
	var memory int64
	cmd := &cobra.Command{
		Use: "wanopt", Short: "Be one half of a WAN optimiser, in a container of a pair", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Memory, c.Log = memory<<20, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			err := wanopt.Run(cmd.Context(), c)
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		},
	}
	cmd.Flags().Int64Var(&memory, "memory", 64, "megabytes of chunks kept")
	return cmd
}
