package cli

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/accel/wanopt"
)

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
