package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/bench"
	"github.com/onpath/onpath/bench/queue"
	"github.com/onpath/onpath/bench/report"
	"github.com/onpath/onpath/cli/table"
)

// benchFlags are what `onpath bench` is told.
type benchFlags struct {
	bench.Options
	json, html, markdown string
	list                 bool
	against              string
}

func newBench(g *global) *cobra.Command {
	b := &benchFlags{}
	c := &cobra.Command{
		Use:   "bench [NAME…]",
		Short: "Measure the data path against the kernel's own and others",
		Long: `Measure, on this machine and in network namespaces alone, what onpath costs
and what it promises, in one run with what it is compared with: plain Linux
forwarding, the least that XDP and tc programs can do, containers wired by hand,
user space by NFQUEUE, Open vSwitch, HAProxy. What this machine lacks is skipped,
with the reason. The whole suite takes less than 45 minutes, --quick less than
four; churn, which takes ten, runs only where it is named.

With --against, two builds of onpath run the named benchmarks in turn, and their
rates and CPU times per packet are compared: the exit code is 1 if the upper
quartile of a ratio is below 0.98.

Needs root and an otherwise idle machine. Nothing is left behind.`,
		Example: examples("sudo onpath bench", "sudo onpath bench forward hop --rounds 10",
			"sudo onpath bench --json results.json --html results.html",
			"sudo onpath bench flows --against ./onpath-before", "onpath bench --list"),
		GroupID: groupAround,
		Args:    cobra.ArbitraryArgs,
		ValidArgsFunction: func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
			for _, m := range bench.Benchmarks() {
				names = append(names, m.Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			outliveReader()
			return b.run(c, args)
		},
	}
	f := c.Flags()
	f.BoolVar(&b.Quick, "quick", false, "run everything once and briefly: shows that it works, measures nothing")
	f.IntVar(&b.Rounds, "rounds", 0, "how often each contestant is measured (default: as the benchmark needs)")
	f.DurationVar(&b.Churn, "churn-time", 0, "how long each case of churn lasts (default: 3m)")
	f.StringVar(&b.json, "json", "", "also write the figures to this file")
	f.BoolVar(&b.list, "list", false, "list the benchmarks and their targets")
	f.StringVar(&b.Images, "images", "bin/images", "`folder` with the images that make images builds")
	f.StringVar(&b.Previous, "previous", "", "an earlier `program` from which failover upgrades to this one")
	f.StringVar(&b.Graphs, "graphs", "", "`folder` with networks for mosto: files *.edges.lat of lines \"A -> B MILLISECONDS\"")
	f.StringVar(&b.against, "against", "", "compare with another build of onpath: this `program`")
	f.StringVar(&b.html, "html", "", "also write a report with plots to this file, one page that needs nothing else")
	f.StringVar(&b.markdown, "markdown", "", "also write the results into this `page`, between the lines that mark their place, and "+
		"plots beside it")
	c.AddCommand(newBenchReport(), newBenchQueue(), newBenchCloud(g))
	return c
}

// newBenchQueue is the contestant in user space, a process of its own.
func newBenchQueue() *cobra.Command {
	var install bool
	var ready string
	c := &cobra.Command{
		Use: "queue", Short: "Accept every packet that netfilter queues", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if install {
				if err := queue.Install(); err != nil {
					return err
				}
			}
			return queue.Serve(c.Context(), func() { _ = os.WriteFile(ready, nil, 0o600) })
		},
	}
	c.Flags().BoolVar(&install, "install", false, "have what is forwarded queued first")
	c.Flags().StringVar(&ready, "ready", os.DevNull, "make this file when it begins")
	return c
}

func (b *benchFlags) run(c *cobra.Command, names []string) error {
	if b.list {
		return listBenchmarks(c)
	}
	if b.Rounds < 0 {
		return badUsage("--rounds %d must be above 0", b.Rounds)
	}
	if b.Churn < 0 {
		return badUsage("--churn-time %v must be above 0", b.Churn)
	}
	if b.against != "" {
		if err := b.checkAgainst(); err != nil {
			return err
		}
	}
	if err := b.canWrite(); err != nil {
		return err
	}
	if err := needsRoot(c); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	b.Names, b.Program, b.Version = names, program, versionString()
	progress, start := newProgress(c.ErrOrStderr()), time.Now()
	b.Progress = func(format string, args ...any) {
		progress.show("%4.0f s  %s", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	if b.against != "" {
		err := b.runAgainst(c)
		progress.done()
		return err
	}
	res, err := bench.Execute(c.Context(), b.Options)
	progress.done()
	if res == nil {
		return err
	}
	if werr := b.write(c, res); err == nil {
		err = werr
	}
	return err
}

// canWrite refuses files for results that could not be written in the end.
func (b *benchFlags) canWrite() error {
	if err := canWrite("--json", b.json); err != nil {
		return err
	}
	if err := canWrite("--html", b.html); err != nil {
		return err
	}
	if b.markdown == "" {
		return nil
	}
	if err := report.CheckPage(b.markdown); err != nil {
		return err
	}
	return canWrite("--markdown", b.markdown)
}

// write prints what was measured, also by a run that was broken off.
func (b *benchFlags) write(c *cobra.Command, res *bench.Results) error {
	if err := report.Text(c.OutOrStdout(), res); err != nil {
		return err
	}
	if b.json != "" {
		if err := res.WriteFile(b.json); err != nil {
			return err
		}
	}
	var err error
	if b.html != "" {
		err = writeHTML(b.html, res)
	}
	if b.markdown != "" {
		err = errors.Join(err, report.Markdown(b.markdown, res))
	}
	return err
}

func writeHTML(name string, res *bench.Results) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return errors.Join(report.HTML(f, res), f.Close())
}

// newBenchReport shows what an earlier run wrote.
func newBenchReport() *cobra.Command {
	var html, markdown string
	c := &cobra.Command{
		Use: "report FILE.json", Short: "Show the results that a run has written",
		Example: examples("onpath bench report results.json", "onpath bench report results.json --html results.html",
			"onpath bench report docs/performance/results.json --markdown docs/performance.md"),
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return noFile(args[0], err)
			}
			defer f.Close()
			res, err := bench.Read(f)
			if err != nil {
				return badUsage("%s: %w", args[0], err)
			}
			if html != "" {
				err = writeHTML(html, res)
			}
			if markdown != "" {
				err = errors.Join(err, report.Markdown(markdown, res))
			}
			if html != "" || markdown != "" {
				return err
			}
			return report.Text(c.OutOrStdout(), res)
		},
	}
	c.Flags().StringVar(&html, "html", "", "write a page with plots to this file")
	c.Flags().StringVar(&markdown, "markdown", "", "write the results into this `page`, between the lines that mark their place, and "+
		"plots beside it")
	return c
}

func listBenchmarks(c *cobra.Command) error {
	t := table.New("NAME", "QUESTION", "TARGETS")
	for _, b := range bench.Benchmarks() {
		var targets []string
		for _, g := range b.Targets {
			targets = append(targets, g.Text)
		}
		t.Row(b.Name, b.Question, strings.Join(targets, "; "))
	}
	return t.Write(c.OutOrStdout())
}
