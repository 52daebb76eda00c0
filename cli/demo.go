package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/demo"
)

// newDemo is the first demonstration by itself, and each other as a subcommand.
func newDemo(*global) *cobra.Command {
	var c *cobra.Command
	for _, d := range demo.All() {
		one := newDemonstration(d)
		if c == nil {
			c = one
			c.GroupID = groupRun
			continue
		}
		c.AddCommand(one)
	}
	c.AddCommand(newDemoOrigin(), newDemoLoad(), newDemoProbe(), newDemoStats(), newDemoNames(), newDemoNumbers(), newDemoEcho(),
		newDemoDatagrams(), newDemoFiles(), newDemoCollect(), newDemoInspect(), newDemoSend(), newDemoReceive(),
		newDemoSpec("hostile", "Attack all else from within a container, as a JSON text says", demo.RunHostile),
		newDemoExchangeServer(), newDemoSpec("exchange", "Have connections exchange data", demo.RunExchange),
		newDemoSpec("wire", "Count packets at a device", demo.RunWire))
	return c
}

func newDemonstration(d demo.Demonstration) *cobra.Command {
	var o demo.Options
	var down bool
	name := strings.TrimSpace("demo " + d.Name)
	c := &cobra.Command{
		Use:   name[strings.LastIndexByte(name, ' ')+1:],
		Short: d.Short,
		Long: fmt.Sprintf("%s\n\nEvery figure is read from the real components. It takes less than %d seconds,\nneeds root, and leaves "+
			"nothing behind. Exit code 0 means that every effect was seen.",
			d.Long, d.Seconds),
		Example: examples("sudo onpath "+name, "sudo onpath "+name+" --keep", "sudo onpath "+name+" --down",
			"sudo onpath "+name+" --json figures.json"),
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			outliveReader()
			if down && (o.Keep || o.Anew) {
				return badUsage("--down removes what an earlier run left, and runs nothing: leave out --keep and --anew")
			}
			if o.Runs < 0 || o.Runs > 1000 || o.Runs == 0 && d.Runs > 0 {
				return badUsage("--runs %d must be from 1 to 1000", o.Runs)
			}
			if err := canWrite("--json", o.JSON); err != nil {
				return err
			}
			if os.Geteuid() != 0 {
				return &onpath.Error{Code: onpath.CodeForbidden,
					Message: "the demonstration makes network namespaces and runs containers",
					Remedy:  "run it as root: sudo onpath " + name}
			}
			if down {
				return demo.Down(c.Context(), o.Dir, c.OutOrStdout())
			}
			o.Out, o.Keep = c.OutOrStdout(), o.Keep || o.Console
			return demo.Show(c.Context(), d, o)
		},
	}
	f := c.Flags()
	if len(d.Images) > 0 {
		f.StringVar(&o.Images, "images", "bin/images", "`folder` with the images that make images builds")
	}
	f.StringVar(&o.JSON, "json", "", "also write the figures to this file")
	f.BoolVar(&o.Keep, "keep", false, "leave everything running, to look around in")
	f.BoolVar(&o.Console, "console", false, "leave everything running, and print the address of web pages on it")
	if d.Runs > 0 {
		f.IntVar(&o.Runs, "runs", d.Runs, "how often each thing is timed; medians are shown")
	}
	f.BoolVar(&o.Anew, "anew", false, "remove one that --keep left running, first")
	f.BoolVar(&down, "down", false, "remove what an earlier run left")
	f.StringVar(&o.Dir, "dir", demo.DefaultDir, "folder for state and logs while it runs")
	return c
}

// The hidden commands are the two ends of the demonstration's traffic; they run
// inside the emulated hosts.

func newDemoOrigin() *cobra.Command {
	return &cobra.Command{
		Use: "origin ADDRESS…", Short: "Serve the demonstration's web site", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return demo.RunOrigin(c.Context(), args) },
	}
}

func newDemoLoad() *cobra.Command {
	return &cobra.Command{
		Use: "load SPEC", Short: "Fetch from the demonstration's web site", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var spec demo.LoadSpec
			if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
				return err
			}
			res, err := demo.RunLoad(c.Context(), spec)
			if err != nil {
				return err
			}
			return json.NewEncoder(c.OutOrStdout()).Encode(res)
		},
	}
}

func newDemoDatagrams() *cobra.Command {
	return &cobra.Command{
		Use: "datagrams ADDRESS", Short: "Ask an echo server as often as standard input says", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return demo.RunDatagrams(c.Context(), args[0], c.InOrStdin(), c.OutOrStdout())
		},
	}
}

func newDemoFiles() *cobra.Command {
	return &cobra.Command{
		Use: "files FOLDER ADDRESS", Short: "Serve files", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error { return demo.RunFiles(c.Context(), args[0], args[1]) },
	}
}

func newDemoCollect() *cobra.Command {
	return &cobra.Command{
		Use: "collect ADDRESS", Short: "Print what NetMonitor counts", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return demo.RunCollect(c.Context(), args[0], c.OutOrStdout())
		},
	}
}

func newDemoInspect() *cobra.Command {
	var work time.Duration
	c := &cobra.Command{
		Use: "inspect", Short: "Look long at every packet between eth0 and eth1", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return demo.RunInspect(c.Context(), work) },
	}
	c.Flags().DurationVar(&work, "work", 0, "processor time for each packet")
	return c
}

func newDemoProbe() *cobra.Command {
	var count int
	var timeout time.Duration
	c := &cobra.Command{
		Use: "probe ADDRESS", Short: "Time TCP handshakes", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			res, err := demo.RunProbe(c.Context(), args[0], count, timeout)
			if err != nil {
				return err
			}
			return json.NewEncoder(c.OutOrStdout()).Encode(res)
		},
	}
	c.Flags().IntVar(&count, "count", 1, "handshakes")
	c.Flags().DurationVar(&timeout, "timeout", time.Second, "of one handshake")
	return c
}

func newDemoNumbers() *cobra.Command {
	return &cobra.Command{
		Use: "numbers SPEC", Short: "Send numbered datagrams and count echoes", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var spec demo.NumbersSpec
			if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
				return err
			}
			res, err := demo.RunNumbers(c.Context(), spec)
			if err != nil {
				return err
			}
			return json.NewEncoder(c.OutOrStdout()).Encode(res)
		},
	}
}

func newDemoNames() *cobra.Command {
	return &cobra.Command{
		Use: "names SPEC", Short: "Ask for a name again and again", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var spec demo.NamesSpec
			if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
				return err
			}
			res, err := demo.RunNames(c.Context(), spec)
			if err != nil {
				return err
			}
			return json.NewEncoder(c.OutOrStdout()).Encode(res)
		},
	}
}

func newDemoEcho() *cobra.Command {
	return &cobra.Command{
		Use: "echo ADDRESS…", Short: "Send datagrams back", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return demo.RunEcho(c.Context(), args) },
	}
}

func newDemoStats() *cobra.Command {
	return &cobra.Command{
		Use: "stats URL", Short: "Print what a URL answers", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, args[0], nil)
			if err != nil {
				return err
			}
			resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", args[0], resp.Status)
			}
			_, err = io.Copy(c.OutOrStdout(), resp.Body)
			return err
		},
	}
}

func newDemoSend() *cobra.Command {
	return &cobra.Command{
		Use: "send ADDRESS…", Short: "Send as many bytes as a connection asks for", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return demo.RunSend(c.Context(), args) },
	}
}

func newDemoReceive() *cobra.Command {
	return &cobra.Command{
		Use: "receive ADDRESS BYTES COUNT", Short: "Time transfers", Hidden: true, Args: cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			size, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil {
				return err
			}
			count, err := strconv.Atoi(args[2])
			if err != nil {
				return err
			}
			took, err := demo.RunReceive(c.Context(), args[0], size, count)
			if err != nil {
				return err
			}
			return json.NewEncoder(c.OutOrStdout()).Encode(took)
		},
	}
}

// newDemoSpec is a hidden command that does what a JSON text says, and writes what came of it.
func newDemoSpec[S, R any](name, short string, do func(context.Context, S) (R, error)) *cobra.Command {
	return &cobra.Command{
		Use: name + " SPEC", Short: short, Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var spec S
			if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
				return badUsage("%v", err)
			}
			res, err := do(c.Context(), spec)
			if err != nil {
				return err
			}
			return json.NewEncoder(c.OutOrStdout()).Encode(res)
		},
	}
}

func newDemoExchangeServer() *cobra.Command {
	return &cobra.Command{
		Use: "exchange-server ADDRESS…", Short: "Send back what connections send", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return demo.RunExchangeServer(c.Context(), args) },
	}
}
