package cli

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/cli/terminal"
)

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
		Example: examples("onpath capture web-firewall -w fw.pcapng", "onpath capture --node fra1-gw1 -c 100 -w - | tcpdump -nr -",
			"onpath capture web-cache --src 10.1.0.2 --dst 10.9.0.2 -p tcp/80 -w flow.pcapng"),
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: g.completeKind(onpath.KindInstance),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && node != "" {
				return badUsage("an instance and --node exclude each other: leave out --node %s to capture at the instance, or %s to "+
					"capture at the gateway's uplinks", node, args[0])
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
					return badUsage("one flow is meant by --src, --dst and --protocol together; %s missing",
						lacking(map[string]string{"--src": src, "--dst": dst, "--protocol": protocol}))
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
