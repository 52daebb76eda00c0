package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/internal/render"
	"github.com/onpath/onpath/internal/terminal"
)

// mostNames is how many instances an error names.
const mostNames = 6

// instance finds the instance that is meant: its name, or, where it has one
// only beside those that drain, its deployment's.
func (g *global) instance(ctx context.Context, cl *client.Client, name string) (*onpath.Instance, error) {
	k, err := g.key(onpath.KindInstance, name)
	if err != nil {
		return nil, err
	}
	o, err := cl.Get(ctx, k)
	if err == nil {
		return o.(*onpath.Instance), nil
	}
	if onpath.CodeOf(err) != onpath.CodeNotFound {
		return nil, err
	}
	list, _, listErr := cl.List(ctx, onpath.KindInstance, k.Tenant)
	if listErr != nil {
		return nil, listErr
	}
	var found []*onpath.Instance
	var names []string
	for _, o := range list {
		i := o.(*onpath.Instance)
		names = append(names, i.Metadata.Name)
		if i.Spec.Deployment == k.Name {
			found = append(found, i)
		}
	}
	if serving := slices.DeleteFunc(slices.Clone(found), func(i *onpath.Instance) bool { return !i.Spec.Draining.IsZero() }); len(serving) == 1 {
		return serving[0], nil
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		names = names[:0]
		for _, i := range found {
			names = append(names, i.Metadata.Name)
		}
		return nil, badUsage("deployment %s has %d instances: %s; say which", k.Name, len(found), strings.Join(names, ", "))
	}
	e := onpath.Errorf(onpath.CodeNotFound, "tenant %s has no instance and no deployment with an instance called %q", k.Tenant, k.Name)
	w := onpath.Nearest(k.Name, names)
	switch {
	case w != "":
		e.Remedy = "did you mean " + w + "?"
	case len(names) > 0 && len(names) <= mostNames:
		e.Remedy = "there are " + strings.Join(names, ", ")
	default:
		e.Remedy = "onpath get instances -t " + k.Tenant + " lists them"
	}
	return nil, e
}

func newLogs(g *global) *cobra.Command {
	var o client.LogsOptions
	c := &cobra.Command{
		Use: "logs INSTANCE", Short: "Show what an instance writes", GroupID: groupSee,
		Long: `Show what an instance writes to standard output and error. A deployment's name
will do if it has one instance beside those that drain. --previous shows what the
run before the present one wrote, at most its last MiB, until it ended or was told
to end.

What it writes is kept as it is, without times, so there is no --since: --tail
shows the end, and -f what comes from now on, until Ctrl-C or the instance's end.
If the node's agent or the server goes away before, it ends with code 4.`,
		Example: examples("onpath logs web-cache-x2k4d", "onpath logs -f --tail 20 web-cache", "onpath logs --previous web-cache"),
		Args:    cobra.ExactArgs(1), ValidArgsFunction: g.completeKind(onpath.KindInstance),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("tail") && o.Tail < 0 {
				return badUsage("--tail %d: a number of lines is 0 or more", o.Tail)
			}
			if o.Follow && o.Previous {
				return badUsage("an earlier run writes nothing more: there is nothing to follow")
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			i, err := g.instance(c.Context(), cl, args[0])
			if err != nil {
				return err
			}
			return cl.Logs(c.Context(), i.Metadata.Tenant, i.Metadata.Name, o, c.OutOrStdout())
		},
	}
	c.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on with what it writes from now on")
	c.Flags().BoolVar(&o.Previous, "previous", false, "what the run before the present one wrote")
	c.Flags().IntVar(&o.Tail, "tail", -1, "only the last `lines` (default all)")
	c.Flags().Lookup("tail").DefValue = "0" // the help says what the default means
	g.tenantFlag(c, "tenant of the instance")
	return c
}

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
	sizes := make(chan session.WindowSize, 1)
	e.Resize = sizes
	go terminal.Resized(c.Context(), f, func(columns, rows int) {
		select {
		case <-sizes: // only the newest counts
		default:
		}
		sizes <- session.WindowSize{Rows: uint16(rows), Columns: uint16(columns)}
	})
	return e, restore, nil
}

func newCapture(g *global) *cobra.Command {
	var at client.CaptureAt
	var file, node, src, dst, protocol string
	c := &cobra.Command{
		Use: "capture [INSTANCE] -w FILE", Short: "Write packets at an instance or a gateway's uplinks as pcapng", GroupID: groupSee,
		Long: `Write the packets that enter or leave an instance, or a gateway's uplinks, as
pcapng, until Ctrl-C or --count packets. If the node's agent or the server goes
away before, it ends with code 4; what it has written ends with a whole packet.

An ebpf function has no interface to capture at; its packets are to be seen at the
uplinks of its gateway (--node).`,
		Example: examples("onpath capture web-firewall -w fw.pcapng", "onpath capture --node fra1-gw1 -c 100 -w - | tcpdump -nr -", "onpath capture web-cache --src 10.1.0.2 --dst 10.9.0.2 -p tcp/80 -w flow.pcapng"),
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: g.completeKind(onpath.KindInstance),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && node != "" {
				return badUsage("an instance and --node exclude each other: leave out --node %s to capture at the instance, or %s to capture at the gateway's uplinks", node, args[0])
			}
			if len(args) == 0 && node == "" {
				return badUsage("name an instance, or a gateway with --node")
			}
			if at.Count < 0 {
				return badUsage("--count %d: a number of packets is 1 or more; without it the capture goes on until Ctrl-C", at.Count)
			}
			if at.Length < 0 {
				return badUsage("--length %d: a number of bytes is 1 or more; without it packets are kept whole", at.Length)
			}
			if err := render.CheckProtocol(protocol); protocol != "" && err != nil {
				return err
			}
			if src != "" || dst != "" || protocol != "" {
				if src == "" || dst == "" || protocol == "" {
					return badUsage("one flow is meant by --src, --dst and --protocol together; %s missing", lacking(map[string]string{"--src": src, "--dst": dst, "--protocol": protocol}))
				}
				t, err := render.ParseFlow(src, dst, protocol)
				if err != nil {
					return err
				}
				at.Tuple = &t
			}
			if file != "-" {
				if err := canWrite("--write", file); err != nil {
					return err
				}
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			if at.Node = node; node == "" {
				i, err := g.instance(c.Context(), cl, args[0])
				if err != nil {
					return err
				}
				at.Instance = i.Metadata.Tenant + "/" + i.Metadata.Name
			}
			out, err := captureFile(c, file)
			if err != nil {
				return err
			}
			err = cl.Capture(c.Context(), at, out)
			if c.Context().Err() != nil {
				err = nil // Ctrl-C is how a capture ends
			}
			return errors.Join(err, out.Close())
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "write", "w", "", "file to write, or - for standard output (required)")
	f.StringVar(&node, "node", "", "capture at this gateway's uplinks")
	f.BoolVar(&at.Back, "back", false, "the second side of a bridged instance")
	f.IntVarP(&at.Count, "count", "c", 0, "end after this many packets")
	f.IntVarP(&at.Length, "length", "s", 0, "keep this many bytes of each packet (default all)")
	f.StringVar(&src, "src", "", "only the flow from this address[:port]")
	f.StringVar(&dst, "dst", "", "only the flow to this address")
	f.StringVarP(&protocol, "protocol", "p", "", "protocol of the flow: tcp/80, udp/53, icmp")
	g.tenantFlag(c, "tenant of the instance")
	_ = c.MarkFlagRequired("write")
	return c
}

// lacking names the flags without a value.
func lacking(flags map[string]string) string {
	var names []string
	for name, value := range flags {
		if value == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) == 1 {
		return names[0] + " is"
	}
	return strings.Join(names, " and ") + " are"
}

// captureFile is the output; packets are no text for a terminal.
func captureFile(c *cobra.Command, file string) (io.WriteCloser, error) {
	if file != "-" {
		return &lateFile{path: file}, nil
	}
	if f, ok := c.OutOrStdout().(*os.File); ok && terminal.Is(f) {
		return nil, badUsage("packets are no text: write them to a file, or pipe them to a program")
	}
	return nopCloser{c.OutOrStdout()}, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// lateFile is made, and an older one of its name emptied, once there is
// something to write: a capture that is refused leaves what was there.
type lateFile struct {
	path string
	file *os.File
}

func (l *lateFile) Write(b []byte) (int, error) {
	if l.file == nil {
		f, err := os.Create(l.path)
		if err != nil {
			return 0, onpath.Errorf(onpath.CodeInvalid, "%w", err)
		}
		l.file = f
	}
	return l.file.Write(b)
}

func (l *lateFile) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
