package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newMan writes the man pages that a package of the distribution has.
func newMan(*global) *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write man pages of all commands into a folder", Hidden: true,
		Example: examples("onpath man /usr/share/man/man1"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return badUsage("%w", err)
			}
			root := c.Root()
			// the same sources give the same pages
			root.DisableAutoGenTag = true
			head := &doc.GenManHeader{Section: "1", Manual: "onpath", Source: "onpath " + versionString()} // date: $SOURCE_DATE_EPOCH
			if err := doc.GenManTree(root, head, args[0]); err != nil {
				return fmt.Errorf("man pages: %w", err)
			}
			return nil
		},
	}
}
