package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/cli/terminal"
)

// watchFlow shows every second where a flow's packets end, until Ctrl-C.
func (g *global) watchFlow(c *cobra.Command, cl *client.Client, tuple onpath.Tuple, gateway string) error {
	f, ok := c.OutOrStdout().(*os.File)
	redraw := g.output == outTable && ok && terminal.Is(f)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		w, err := cl.WatchFlow(c.Context(), tuple, gateway)
		if c.Context().Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case g.output == outJSON:
			err = json.NewEncoder(c.OutOrStdout()).Encode(w)
		default:
			if redraw {
				fmt.Fprint(c.OutOrStdout(), "\x1b[H\x1b[2J")
			}
			err = render.FlowWatch(c.OutOrStdout(), w)
		}
		if err != nil {
			return err
		}
		select {
		case <-c.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}
