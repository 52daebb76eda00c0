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
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/config"
	"github.com/onpath/onpath/runtime/relay"
)

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
			if err := accel.Confine(); err != nil {
				log.Warn("the relays keep rights that they do not need", "err", err)
			}
			h := accel.NewHost(log)
			defer context.AfterFunc(c.Context(), h.End)()
			return h.Run(l)
		},
	}
	c.Flags().StringVar(&socket, "socket", "", "unix socket for the agent")
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
