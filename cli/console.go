package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/cli/catalogue"
	"github.com/onpath/onpath/cli/console"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/web"
)

func newConsole(g *global) *cobra.Command {
	var listen string
	var noOpen bool
	c := &cobra.Command{
		Use: "console", Short: "Show the network in a browser", GroupID: groupSee,
		Long: `Show the network in a browser: serve the console's pages on this machine alone, with
your own rights, until Ctrl-C. The address that it prints opens the console once;
the next one is printed when that was used.`,
		Example: examples("onpath console", "onpath console --no-open --listen 127.0.0.1:8080"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			at, err := netip.ParseAddrPort(listen)
			if err != nil || !at.Addr().IsLoopback() {
				return badUsage("--listen %s: write a loopback address and a port, such as 127.0.0.1:4799: the console asks nobody "+
					"for a password", listen)
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if err := cl.Ready(c.Context()); err != nil {
				return err
			}
			server, err := url.Parse(cl.URL())
			if err != nil {
				return err
			}
			carried, err := catalogueJSON()
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return notHeard("--listen", listen, err)
			}
			say := func(address string) { fmt.Fprintf(c.OutOrStdout(), "the console is at %s\n", address) }
			pages := console.New(console.Options{Address: l.Addr().String(), Pages: web.Pages(), Server: server, Catalogue: carried,
				Transport: cl.HTTP().Transport, Shell: shellOf(cl), Entered: say})
			say(pages.Open())
			if !noOpen {
				openBrowser(c.Context(), pages.Open())
			}
			return serveConsole(c.Context(), l, pages)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:4799", "loopback `address` and port; port 0 is any that is free")
	c.Flags().BoolVar(&noOpen, "no-open", false, "open no browser")
	return c
}

// catalogueJSON is the catalogue for the pages, without its pages.
func catalogueJSON() ([]byte, error) {
	list, err := catalogue.List()
	if err != nil {
		return nil, err
	}
	var shown []*render.CatalogueEntry
	for _, e := range list {
		s := shownEntry(e)
		s.Page = ""
		shown = append(shown, s)
	}
	return json.Marshal(shown)
}

// shellOf runs shells in instances for the console's terminals.
func shellOf(cl *client.Client) console.Shell {
	return func(ctx context.Context, tenant, name string, in io.Reader, out io.Writer, sizes <-chan onpath.WindowSize) (int, error) {
		return cl.Exec(ctx, tenant, name, []string{"sh"}, true, session.ExecIO{Stdin: in, Stdout: out, Stderr: out, Resize: sizes})
	}
}

func serveConsole(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// openBrowser opens the address where there is a desktop; the printed address does it, too.
func openBrowser(ctx context.Context, address string) {
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	if cmd := exec.CommandContext(context.WithoutCancel(ctx), "xdg-open", address); cmd.Start() == nil {
		go func() { _ = cmd.Wait() }()
	}
}
