package cli

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/internal/signalling"
	"github.com/onpath/onpath/signal/nslp"
)

func newSignal(g *global) *cobra.Command {
	return group("signal", "Have modules installed on the way to a user by one message", groupAround,
		newSignalRequest(g, "setup", "FILE", "Install the module that a file describes on the nodes on the way",
			func(args []string) (*nslp.Message, error) { return readRequest(args[0], nslp.Setup) }),
		newSignalRequest(g, "remove", "MODULE", "Remove a module from the nodes on the way",
			func(args []string) (*nslp.Message, error) {
				return &nslp.Message{Type: nslp.Remove, Module: args[0]}, nil
			}),
		newSignalRequest(g, "probe", "", "Ask the nodes on the way which of your modules they run",
			func([]string) (*nslp.Message, error) { return &nslp.Message{Type: nslp.Probe}, nil }),
		newSignalRequest(g, "trigger", "FILE", "Have the last node send the file's request back toward here",
			func(args []string) (*nslp.Message, error) { return readRequest(args[0], 0) }),
		newSignalKey(g))
}

func newSignalRequest(g *global, verb, args, short string, read func([]string) (*nslp.Message, error)) *cobra.Command {
	var toward, from, key, module, nodes string
	timeout := 20 * time.Second
	c := &cobra.Command{
		Use:   strings.TrimSpace(verb + " --toward ADDRESS --key FILE " + args),
		Short: short,
		Long: short + `.

The request goes toward ADDRESS. Each onpath node on the way with spec.leases reads it, decides by
its operator's word, and answers; nodes without it forward the request. The answers come back as a
stack in the order of the way. docs/signalling.md has the form of FILE.

Each node signs its answer. The first time that a node answers, its key is believed and written to
the file of --nodes; from then on an answer that this key did not sign is unproved: it may be
forged, and the exit code is not 0.`,
		Example: examples("onpath signal "+strings.TrimSpace(verb+" --toward 198.51.100.7 --key me.key "+exampleOf(args)),
			"onpath signal probe --toward 198.51.100.7 --key me.key -o json"),
		Args: cobra.ExactArgs(len(strings.Fields(args))),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			o := signalling.Options{Timeout: timeout, Wrap: verb == "trigger"}
			var err error
			if o.Toward, err = netip.ParseAddr(toward); err != nil {
				return badUsage("--toward %q is no address: write that of a user, such as 198.51.100.7", toward)
			}
			if o.Toward.IsMulticast() || o.Toward.IsUnspecified() || o.Toward == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
				return badUsage("--toward %s is not the address of one machine: write that of a user, such as 198.51.100.7", toward)
			}
			if from != "" {
				if o.From, err = netip.ParseAddr(from); err != nil {
					return badUsage("--from %q is no address of this machine", from)
				}
			}
			if o.Key, err = signalling.ReadKey(key); err != nil {
				return err
			}
			m, err := read(args)
			if err != nil {
				return err
			}
			if err := hashModule(c, m, module); err != nil {
				return err
			}
			if o.Nodes, err = signalling.OpenNodes(nodes); err != nil {
				return err
			}
			response, err := signalling.Request(c.Context(), m, o)
			if err != nil {
				return &onpath.Error{Code: onpath.CodeUnavailable, Message: err.Error()}
			}
			fresh, err := o.Nodes.Save()
			if err != nil {
				return fmt.Errorf("keep the keys that nodes showed: %w", err)
			}
			for _, line := range fresh {
				node, key, _ := strings.Cut(line, " ")
				fmt.Fprintf(c.ErrOrStderr(), "node %s shows its key for the first time: %s is believed, and written to %s\n",
					node, key, nodes)
			}
			return printStack(g, c, m, response)
		},
	}
	f := c.Flags()
	f.StringVar(&toward, "toward", "", "address of the user (or of the server, from the user's end)")
	f.StringVar(&from, "from", "", "address of this machine to send from; default: by route")
	f.StringVar(&key, "key", "", "file with the private key (onpath signal key makes one)")
	f.StringVar(&nodes, "nodes", filepath.Join(home(), "nodes"),
		"file with the keys of nodes that are known (ONPATH_HOME is ~/.config/onpath if it is not set)")
	f.Lookup("nodes").DefValue = "$ONPATH_HOME/nodes"
	f.DurationVar(&timeout, "timeout", timeout, "how long to wait for the answers")
	if verb == "setup" || verb == "trigger" {
		f.StringVar(&module, "module", "", "the module's file, whose hash goes into the request; default: what its url gives")
	}
	for _, required := range []string{"toward", "key"} {
		_ = c.MarkFlagRequired(required)
	}
	return c
}

func exampleOf(args string) string {
	switch args {
	case "FILE":
		return "netmonitor.txt"
	case "MODULE":
		return "NetMonitor_1.0.0"
	}
	return ""
}

// readRequest reads the text form of a request; of a type, if that is not 0.
func readRequest(file string, t nslp.Type) (*nslp.Message, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	m, err := nslp.ParseText(string(b))
	if err != nil {
		return nil, &onpath.Error{Code: onpath.CodeInvalid, Message: fmt.Sprintf("%s: %v", file, err)}
	}
	if t != 0 && m.Type != t {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%s: line 1: it is a %s, and must be a %s", file, m.Type, t)
	}
	if m.Type == nslp.Setup && m.URL == "" {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%s: header url is missing: write from where nodes fetch the module, url:http://…",
			file)
	}
	if m.TTL > onpath.MaxLeaseTTL {
		return nil, onpath.Errorf(onpath.CodeInvalid, "%s: header ttl is %d: write at most %d seconds, a day", file,
			int(m.TTL.Seconds()), int(onpath.MaxLeaseTTL.Seconds()))
	}
	return m, nil
}

// hashModule names the module of a SETUP by its hash.
func hashModule(c *cobra.Command, m *nslp.Message, file string) error {
	if m.Type != nslp.Setup || len(m.Hash) > 0 && file == "" {
		return nil
	}
	code, err := os.ReadFile(file)
	if file == "" {
		code, err = fetchModule(c, m.URL)
	}
	if err != nil {
		return &onpath.Error{Code: onpath.CodeUnavailable, Message: fmt.Sprintf("hash the module: %v", err),
			Remedy: "name its file with --module"}
	}
	m.Hash = nslp.HashOf(code)
	return nil
}

func fetchModule(c *cobra.Command, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(c.Context(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, onpath.MaxModuleBytes+1))
}

// stack is what a request brought.
type stack struct {
	Request string       `json:"request"`
	Module  string       `json:"module,omitempty"`
	Status  string       `json:"status,omitempty"`
	Stack   []nslp.Entry `json:"stack"`
}

// printStack prints the answers. It is an error if every node refuses.
func printStack(g *global, c *cobra.Command, m, r *nslp.Message) error {
	err := g.print(c, stack{m.Type.String(), m.Module, r.Status, r.Stack}, func(w io.Writer) error {
		t := table.New("HOP", "NODE", "ADDRESS", ">RTT", "STATE", "MODULES", "SERVERS", "WHY")
		addRows(t, "", r.Stack)
		return t.Write(w)
	})
	if err != nil {
		return err
	}
	if r.Status != "" {
		fmt.Fprintln(c.ErrOrStderr(), "status:", r.Status)
	}
	if node, why := unproved(r.Stack); why != nil {
		return &onpath.Error{Code: onpath.CodeForbidden,
			Message: fmt.Sprintf("the answer of node %s is unproved (%s): %s", node, why.Reason, why.Words),
			Remedy:  "if the node has a new key, write it into the file of --nodes; else do not believe what it says"}
	}
	if refused := allRefused(r.Stack); refused != "" {
		return onpath.Errorf(onpath.CodeForbidden, "no node on the way does it: %s", refused)
	}
	if m.Type == nslp.Remove && !removed(r.Stack) {
		return &onpath.Error{Code: onpath.CodeNotFound, Message: fmt.Sprintf("no node on the way has a module %s of this key", m.Module),
			Remedy: "onpath signal probe lists those that are there"}
	}
	return nil
}

// removed reports whether a node has removed the module, or would but for dryRun.
func removed(list []nslp.Entry) bool {
	return slices.ContainsFunc(list, func(e nslp.Entry) bool {
		return e.State == nslp.Removed || e.State == nslp.DryRun || removed(e.Back)
	})
}

func addRows(t *table.Table, indent string, list []nslp.Entry) {
	for i, e := range list {
		rtt, address := "", ""
		if e.RTT > 0 {
			rtt = e.RTT.Round(10 * time.Microsecond).String()
		}
		if e.Address.IsValid() {
			address = e.Address.String()
		}
		why := strings.TrimSuffix(e.Reason+": "+e.Words, ": ")
		t.Row(fmt.Sprintf("%s%d", indent, i+1), e.Node, address, rtt, e.State, strings.Join(e.Modules, ", "), strings.Join(e.Servers, ", "),
			strings.TrimPrefix(why, ": "))
		addRows(t, indent+"back ", e.Back)
	}
}

// unproved is the first node whose answer is not signed as it must be.
func unproved(list []nslp.Entry) (node string, why *nslp.Refusal) {
	for _, e := range list {
		if e.State == nslp.Unproved {
			return e.Node, &nslp.Refusal{Reason: e.Reason, Words: e.Words}
		}
		if node, why := unproved(e.Back); why != nil {
			return node, why
		}
	}
	return "", nil
}

// allRefused is why, if all nodes refuse.
func allRefused(list []nslp.Entry) (why string) {
	for _, e := range list {
		if e.State != nslp.Refused && (e.State != "" || allRefused(e.Back) == "" && len(e.Back) > 0) {
			return ""
		}
		if e.State == nslp.Refused {
			why = e.Reason
		} else if w := allRefused(e.Back); w != "" {
			why = w
		}
	}
	return why
}

func newSignalKey(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "key FILE",
		Short: "Make a key to sign with, or print the public half of one",
		Long: `Make an Ed25519 key in FILE (PEM, PKCS #8), unless it is there, and print its public half in base64:
what an operator writes into the publisher's Tenant, under spec.keys.`,
		Example: examples("onpath signal key me.key"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if _, err := os.Stat(args[0]); os.IsNotExist(err) {
				if err := canWrite("the key's file", args[0]); err != nil {
					return err
				}
				if _, err := signalling.MakeKey(args[0]); err != nil {
					return err
				}
			}
			key, err := signalling.ReadKey(args[0])
			if err != nil {
				return err
			}
			public := base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
			return g.print(c, map[string]string{"file": args[0], "key": public}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, public)
				return err
			})
		},
	}
}
