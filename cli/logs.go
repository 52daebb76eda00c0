package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
)

func newLogs(g *global) *cobra.Command {
	var o client.LogsOptions
	c := &cobra.Command{
		Use: "logs (INSTANCE… | -l SELECTOR)", Short: "Show what an instance writes", GroupID: groupSee,
		Long: `Show what an instance writes to standard output and error. A deployment's name
will do if it has one instance beside those that drain. --previous shows what the
run before the present one wrote, at most its last MiB, until it ended or was told
to end. lease/NAME is the engine that runs all modules of a lease's publisher.

--since shows what it wrote that long ago at most, by its node's clock, and --tail
the end of that; -f goes on with what comes, until Ctrl-C or the instance's end. If
the node's agent or the server goes away before, it ends with code 4. --timestamps
shows when each line came, in UTC; ebpf functions and relays write their times
themselves. Of several instances each line begins with its instance's name.`,
		Example: examples("onpath logs --since 10m --timestamps web-cache-x2k4d", "onpath logs -l app=shop --tail 5",
			"onpath logs -f --tail 20 web-cache", "onpath logs --previous web-cache"),
		Args: cobra.ArbitraryArgs, ValidArgsFunction: g.completeKind(onpath.KindInstance),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("tail") && o.Tail < 0 {
				return badUsage("--tail %d: a number of lines is 0 or more", o.Tail)
			}
			if c.Flags().Changed("since") && o.Since <= 0 {
				return badUsage("--since %s: how long ago is a time above 0, such as 90s, 5m or 1h30m", o.Since)
			}
			if o.Follow && o.Previous {
				return badUsage("an earlier run writes nothing more: there is nothing to follow")
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			list, err := g.instancesNamed(c.Context(), cl, args)
			if err != nil {
				return err
			}
			return logsOf(c.Context(), cl, list, o, c.OutOrStdout())
		},
	}
	c.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on with what it writes from now on")
	c.Flags().BoolVar(&o.Previous, "previous", false, "what the run before the present one wrote")
	c.Flags().IntVar(&o.Tail, "tail", -1, "only the last `lines` (default all)")
	c.Flags().DurationVar(&o.Since, "since", 0, "only what it wrote that long ago at most, such as 5m (default all)")
	c.Flags().BoolVar(&o.Timestamps, "timestamps", false, "before each line, when it came")
	c.Flags().Lookup("tail").DefValue = "0" // the help says what the default means
	g.selectorFlag(c, "instances with these labels")
	g.tenantFlag(c, "tenant of the instances")
	return c
}

// instancesNamed are the instances that a command names, or chooses by -l.
func (g *global) instancesNamed(ctx context.Context, cl *client.Client, args []string) (list []*onpath.Instance, err error) {
	if len(args) == 0 && g.selector == "" {
		return nil, badUsage("of which instance? name one, or choose by -l; onpath get instances lists them")
	}
	if _, err := g.chosen(args); err != nil {
		return nil, err
	}
	for _, name := range args {
		if lease, ok := strings.CutPrefix(name, "lease/"); ok {
			k, err := g.key(onpath.KindLease, lease)
			if err != nil {
				return nil, err
			}
			list = append(list, &onpath.Instance{Metadata: onpath.Metadata{Tenant: k.Tenant, Name: k.Name}})
			continue
		}
		i, err := g.instance(ctx, cl, name)
		if err != nil {
			return nil, err
		}
		list = append(list, i)
	}
	if len(args) > 0 {
		return list, nil
	}
	found, err := g.find(ctx, cl, onpath.KindInstance, nil)
	if err == nil && len(found) == 0 {
		err = onpath.Errorf(onpath.CodeNotFound, "no instance has the labels of -l %s", g.selector)
	}
	for _, o := range found {
		list = append(list, o.(*onpath.Instance))
	}
	return list, err
}

// logsOf copies what instances write, of several at once with their names.
func logsOf(ctx context.Context, cl *client.Client, list []*onpath.Instance, o client.LogsOptions, w io.Writer) error {
	if len(list) == 1 {
		return cl.Logs(ctx, list[0].Metadata.Tenant, list[0].Metadata.Name, o, w)
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	errs := make([]error, len(list))
	one := func(n int, i *onpath.Instance) {
		lines := &prefixed{w: w, mu: &mu, prefix: i.Metadata.Name + ": "}
		if err := cl.Logs(ctx, i.Metadata.Tenant, i.Metadata.Name, o, lines); err != nil {
			errs[n] = fmt.Errorf("%s: %w", i.Metadata.Name, err)
		}
		lines.end()
	}
	for n, i := range list {
		if !o.Follow {
			one(n, i)
			continue
		}
		all.Go(func() { one(n, i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// prefixed writes whole lines, each behind a prefix, into what several share.
type prefixed struct {
	w      io.Writer
	mu     *sync.Mutex
	prefix string
	rest   []byte // of a line that has not ended
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	at := bytes.LastIndexByte(p.rest, '\n') + 1
	if at == 0 {
		return len(b), nil
	}
	lines := p.rest[:at]
	p.rest = bytes.Clone(p.rest[at:])
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range bytes.Lines(lines) {
		if _, err := fmt.Fprintf(p.w, "%s%s", p.prefix, line); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// end writes a last line that did not end.
func (p *prefixed) end() {
	if len(p.rest) > 0 {
		_, _ = p.Write([]byte{'\n'}) // whoever reads no more has said so
	}
}
