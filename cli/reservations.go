package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/render"
	"github.com/onpath/onpath/cli/table"
)

// period are flags of get that choose among reservations.
type period struct{ cloudlet, from, to string }

func (p *period) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&p.cloudlet, "cloudlet", "", "only reservations in this cloudlet")
	f.StringVar(&p.from, "from", "", "only reservations that go on after this time")
	f.StringVar(&p.to, "to", "", "only reservations that begin before this time")
}

// check refuses the flags where they choose nothing.
func (p *period) check(args []string, watch bool) error {
	kind, _ := onpath.ParseKind(args[0])
	if *p != (period{}) && (kind != onpath.KindReservation || len(args) > 1 || watch) {
		return badUsage("--cloudlet, --from and --to choose among all reservations: onpath get reservations --cloudlet fra1")
	}
	return nil
}

// getReservations prints reservations page by page, as there may be 100,000 of them.
func (g *global) getReservations(c *cobra.Command, cl *client.Client, p period) error {
	q := client.ReservationQuery{Tenant: g.tenant, Cloudlet: p.cloudlet}
	var err error
	if q.From, err = instant("--from", p.from); err != nil {
		return err
	}
	if q.Until, err = instant("--to", p.to); err != nil {
		return err
	}
	out := &pages{w: c.OutOrStdout(), output: g.output}
	err = cl.Pool().Reservations(c.Context(), q, func(list []onpath.Object) error {
		list, err := g.matching(c.Context(), cl, list)
		if err != nil {
			return err
		}
		return out.show(list)
	})
	if err == nil && out.count == 0 && g.tenant != "" { // or is there no such tenant?
		_, err = cl.Get(c.Context(), onpath.Key{Kind: onpath.KindTenant, Name: g.tenant})
	}
	if err != nil {
		return err
	}
	if out.count == 0 && (out.output == outTable || out.output == outWide) {
		return g.objects(c.OutOrStdout(), c.ErrOrStderr(), onpath.KindReservation, nil)
	}
	return out.end()
}

// pages prints a list of objects as it comes, in the form that a whole list has.
type pages struct {
	w      io.Writer
	output string
	count  int
	table  *table.Table
}

func (p *pages) show(list []onpath.Object) error {
	for i, o := range list {
		if err := p.one(o, p.count+i); err != nil {
			return err
		}
	}
	p.count += len(list)
	if p.table != nil {
		return p.table.Follow(p.w)
	}
	return nil
}

func (p *pages) one(o onpath.Object, at int) error {
	switch p.output {
	case outName:
		_, err := fmt.Fprintln(p.w, nameOf(o))
		return err
	case outYAML:
		if at > 0 {
			fmt.Fprintln(p.w, "---")
		}
		return manifest.Encode(p.w, o)
	case outJSON:
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("  ", "  ")
		if err := enc.Encode(o); err != nil {
			return err
		}
		before := ",\n  "
		if at == 0 {
			before = "[\n  "
		}
		_, err := fmt.Fprint(p.w, before, string(bytes.TrimRight(b.Bytes(), "\n ")))
		return err
	}
	if p.table == nil {
		p.table = render.Table(o.ObjectKind(), p.output == outWide)
	}
	p.table.Row(render.Row(o, time.Now(), p.output == outWide)...)
	return nil
}

// end closes the list.
func (p *pages) end() error {
	text := ""
	switch {
	case p.output == outJSON && p.count == 0:
		text = "[]\n"
	case p.output == outJSON:
		text = "\n]\n"
	}
	_, err := io.WriteString(p.w, text)
	return err
}
