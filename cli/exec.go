package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/cli/terminal"
)

func newExec(g *global) *cobra.Command {
	var stdin, tty bool
	c := &cobra.Command{
		Use: "exec INSTANCE COMMAND [ARGUMENT…]", Short: "Run a command inside an instance", GroupID: groupSee,
		Long:    "Run a command inside an instance. The exit code is the command's.",
		Example: examples("onpath exec web-firewall nft list ruleset", "onpath exec -it web-cache-x2k4d sh"),
		Args:    cobra.MinimumNArgs(2), ValidArgsFunction: g.completeKind(onpath.KindInstance),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			i, err := g.instance(c.Context(), cl, args[0])
			if err != nil {
				return err
			}
			io, restore, err := execIO(c, stdin, tty)
			if err != nil {
				return err
			}
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			code, err := cl.Exec(c.Context(), i.Metadata.Tenant, i.Metadata.Name, command, tty, io)
			restore()
			if err == nil && code != 0 {
				return exitStatus(code)
			}
			return err
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVarP(&stdin, "stdin", "i", false, "pass standard input on")
	c.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	c.Flags().StringVar(&g.tenant, "tenant", os.Getenv("ONPATH_TENANT"), "tenant of the instance (default $ONPATH_TENANT)")
	return c
}

// execIO connects the command with ours; restore puts the terminal back.
func execIO(c *cobra.Command, stdin, tty bool) (e session.ExecIO, restore func(), err error) {
	e = session.ExecIO{Stdout: c.OutOrStdout(), Stderr: c.ErrOrStderr()}
	restore = func() {}
	if stdin {
		e.Stdin = c.InOrStdin()
	}
	f, ok := c.InOrStdin().(*os.File)
	if !tty || !stdin || !ok || !terminal.Is(f) { // without stdin, Ctrl-C is for us
		return e, restore, nil
	}
	if restore, err = terminal.Raw(f); err != nil {
		return e, func() {}, err
	}
	sizes := make(chan onpath.WindowSize, 1)
	e.Resize = sizes
	go terminal.Resized(c.Context(), f, func(columns, rows int) {
		select {
		case <-sizes: // only the newest counts
		default:
		}
		sizes <- onpath.WindowSize{Rows: uint16(rows), Columns: uint16(columns)}
	})
	return e, restore, nil
}
