package cli

import (
	"bytes"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/publish"
	"github.com/onpath/onpath/functions"
	"github.com/onpath/onpath/internal/signalling"
	"github.com/onpath/onpath/signal/nslp"
	"github.com/onpath/onpath/signal/publisher"
)

func newPublisher(g *global) *cobra.Command {
	return group("publisher", "Have modules installed where a server's crowds are", groupAround,
		newPublisherCDN(g), newPublisherSIP(g))
}

// publisherFlags are what both daemons are told.
type publisherFlags struct{ key, from, nodes string }

func (p *publisherFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&p.key, "key", "", "file with the private key (onpath signal key makes one)")
	f.StringVar(&p.from, "from", "", "address of this machine to send from; default: by route")
	f.StringVar(&p.nodes, "nodes", filepath.Join(home(), "nodes"), "file with the keys of nodes that are known")
	f.Lookup("nodes").DefValue = "$ONPATH_HOME/nodes"
	_ = c.MarkFlagRequired("key")
}

// config is what the daemons begin with.
func (p *publisherFlags) config(c *cobra.Command) (out publish.Config, err error) {
	if out.Send.Key, err = signalling.ReadKey(p.key); err != nil {
		return out, err
	}
	if p.from != "" {
		if out.Send.From, err = netip.ParseAddr(p.from); err != nil {
			return out, badUsage("--from %q is not an address", p.from)
		}
		if !publish.IsLocal(out.Send.From) {
			return out, badUsage("--from %s is no address of this machine", p.from)
		}
	}
	if _, err := signalling.OpenNodes(p.nodes); err != nil {
		return out, err
	}
	out.KnownNodes, out.Out = p.nodes, c.OutOrStdout()
	return out, nil
}

// cdnFlags are those of onpath publisher cdn.
type cdnFlags struct {
	publisherFlags
	publisher.Options
	cdn            publish.CDN
	origin, module string
	properties     []string
}

func newPublisherCDN(*global) *cobra.Command {
	a := &cdnFlags{cdn: publish.CDN{Life: 10 * time.Second},
		Options: publisher.Options{Threshold: 50, Window: 5 * time.Second, Cold: time.Minute, TTL: time.Minute, Bits4: 24, Bits6: 48}}
	c := &cobra.Command{
		Use:   "cdn --origin URL --key FILE --edge ADDRESS:PORT",
		Short: "Send the crowds of a web site to modules that are near to them",
		Long: `Stand in front of a web site by plain HTTP. Requests are handed on to --origin. When more than
--threshold come from a region within --window, the module is installed on the way there by a signed
message, a PROBE tells where it serves, and further GETs of the region are answered with a redirect
(302) to the nearest one. When nothing has come from there for --cold, the module is removed.

Nodes fetch the module, and modules fetch content, at --edge, an address of this machine that both
reach; nobody is redirected there. HTTPS is not served: leave sites that are asked for by it out.`,
		Example: examples("onpath publisher cdn --origin http://127.0.0.1:8000 --edge 192.0.2.10:8080 --key me.key"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := a.prepare(c)
			if err != nil {
				return err
			}
			a.cdn.Daemon = publish.NewDaemon(config)
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.cdn.Run(ctx)
		},
	}
	a.add(c)
	f := c.Flags()
	f.StringVar(&a.origin, "origin", "", "URL of the web site")
	f.StringVar(&a.cdn.Listen, "listen", ":80", "where clients come")
	f.StringVar(&a.cdn.Nodes, "edge", "", "address and port of this machine at which nodes and modules fetch")
	f.StringVar(&a.module, "module", "", "file of the module; default: active-cdn, which comes with onpath")
	f.StringArrayVar(&a.properties, "property", nil, "NAME=VALUE that the module is told beside its origin; may be repeated")
	f.IntVar(&a.Threshold, "threshold", a.Threshold, "requests of a region within --window that make a crowd")
	f.DurationVar(&a.Window, "window", a.Window, "time within which requests are counted")
	f.DurationVar(&a.Cold, "cold", a.Cold, "time without a request after which the module is removed")
	f.DurationVar(&a.TTL, "ttl", a.TTL, "time of a lease; it is prolonged while the crowd lasts")
	f.DurationVar(&a.cdn.Life, "life", a.cdn.Life, "how long clients may remember where they were sent")
	f.IntVar(&a.Bits4, "region4", a.Bits4, "length of the prefix that is a region, IPv4")
	f.IntVar(&a.Bits6, "region6", a.Bits6, "length of the prefix that is a region, IPv6")
	for _, required := range []string{"origin", "edge"} {
		_ = c.MarkFlagRequired(required)
	}
	return c
}

// longestLease is the longest time that a request may ask for.
const longestLease = 24 * time.Hour

// prepare checks the flags, and reads what they name.
func (a *cdnFlags) prepare(c *cobra.Command) (config publish.Config, err error) {
	u, err := url.Parse(a.origin)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return config, badUsage("--origin %q is no URL of a web site: write http://127.0.0.1:8000", a.origin)
	}
	edge, err := netip.ParseAddrPort(a.cdn.Nodes)
	if err != nil || edge.Addr().IsUnspecified() || edge.Addr().IsLoopback() || edge.Port() == 0 {
		return config, badUsage("--edge %q is no address that nodes reach: write one of this machine, such as 192.0.2.10:8080", a.cdn.Nodes)
	}
	if !publish.IsLocal(edge.Addr()) {
		return config, badUsage("--edge %s is no address of this machine", edge)
	}
	if publish.Serves(a.cdn.Listen, edge.Addr(), edge.Port()) {
		return config, badUsage("--listen and --edge are the same address and port: clients would be taken for modules")
	}
	if publish.LeadsTo(c.Context(), u, a.cdn.Listen, a.cdn.Nodes) {
		return config, badUsage("--origin %s is this daemon's own --listen or --edge: requests would go in a circle; "+
			"name the web server itself", a.origin)
	}
	if a.Threshold < 1 || a.Window < time.Second || a.TTL < 3*time.Second || a.TTL > longestLease || a.Cold <= 0 || a.cdn.Life < 0 {
		return config, badUsage("--threshold is at least 1, --window at least 1s, --ttl 3s to 24h, --cold above 0, and --life not below 0")
	}
	for _, p := range a.properties {
		if name, _, ok := strings.Cut(p, "="); !ok || name == "" || name == "origin" {
			return config, badUsage("--property %s: write NAME=VALUE; the module's origin is --edge, and cannot be another one", p)
		}
	}
	if a.Bits4 < 0 || a.Bits4 > 32 || a.Bits6 < 0 || a.Bits6 > 128 {
		return config, badUsage("--region4 is the length of a prefix of IPv4, and --region6 of IPv6")
	}
	var code []byte
	if a.module == "" {
		a.module = "active-cdn.wasm"
		code, err = functions.Catalogue.ReadFile("active-cdn/active-cdn.wasm")
	} else {
		code, err = os.ReadFile(a.module)
	}
	if err != nil {
		return config, err
	}
	if n := len(code); n > onpath.MaxModuleBytes {
		return config, onpath.Errorf(onpath.CodeInvalid, "%s has %d bytes; a module has at most %d", a.module, n, onpath.MaxModuleBytes)
	}
	if !bytes.HasPrefix(code, []byte("\x00asm")) {
		return config, badUsage("--module %s is no WebAssembly module", a.module)
	}
	if config, err = a.config(c); err != nil {
		return config, err
	}
	a.cdn.Origin, a.cdn.Code = u, code
	a.Module = strings.TrimSuffix(filepath.Base(a.module), ".wasm")
	config.Options = a.Options
	config.Request = nslp.Message{
		Type: nslp.Setup, Module: a.Module, Dependencies: []string{nslp.BlockHTTP}, TTL: a.TTL,
		Properties: append([]string{"origin=http://" + edge.String()}, a.properties...), Fetch: []string{edge.String()},
		URL: "http://" + edge.String() + publish.ModulePath, Hash: nslp.HashOf(code),
	}
	return config, nil
}

func newPublisherSIP(*global) *cobra.Command {
	var p publisherFlags
	s := publish.SIP{Word: "keepalive from "}
	c := &cobra.Command{
		Use:   "sip --log FILE --key FILE REQUEST",
		Short: "Have keep-alives answered near the users of a SIP server",
		Long: `Follow the log of a SIP server such as Kamailio. At a user's first keep-alive, a line with --word and
the user's address behind it, the request of file REQUEST is sent toward the user: the module that it
names answers there from then on, so that no further keep-alive comes. When the lease's time is over
the next keep-alive that comes asks again. docs/signalling.md has the form of REQUEST.`,
		Example: examples("onpath publisher sip --log /var/log/kamailio.log --key me.key keepalive.txt"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			config, err := p.config(c)
			if err != nil {
				return err
			}
			m, err := readRequest(args[0], nslp.Setup)
			if err != nil {
				return err
			}
			if err := hashModule(c, m, ""); err != nil {
				return err
			}
			config.Request = *m
			config.Options = publisher.Options{Module: m.Module, Threshold: 1, Window: 2 * time.Second, TTL: m.TTL, Bits4: 32, Bits6: 128}
			s.Daemon = publish.NewDaemon(config)
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return s.Run(ctx)
		},
	}
	p.add(c)
	c.Flags().StringVar(&s.Log, "log", "", "file that the SIP server writes")
	c.Flags().StringVar(&s.Word, "word", s.Word, "what stands before the user's address in a line about a keep-alive")
	_ = c.MarkFlagRequired("log")
	return c
}
