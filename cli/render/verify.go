package render

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// Verification prints what was proved, and the flows that refute the rest.
func Verification(w io.Writer, p *onpath.Verification) error {
	t := table.New("CHAIN", "VERDICT", "SCOPE", ">CLASSES", "NOTE")
	for _, c := range p.Chains {
		t.Row(c.Chain, string(c.Verdict), string(c.Scope), fmt.Sprint(c.Classes), strings.Join(append(reasonOf(c), c.Notes...), "; "))
	}
	if r := p.Rest; r != nil {
		t.Row("(no chain)", string(r.Verdict), "", fmt.Sprint(r.Classes), strings.Join(reasonOf(*r), "; "))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	for _, c := range p.Chains {
		if c.Scope != onpath.ScopeSegments {
			continue
		}
		fmt.Fprintf(w, "\nsegments of %s\n", c.Chain)
		for _, s := range c.Segments {
			fmt.Fprintf(w, "  %s\n", s)
		}
	}
	for _, c := range p.Chains {
		if len(c.Redirects) > 0 {
			fmt.Fprintf(w, "\nredirects of %s\n", c.Chain)
		}
		for _, s := range c.Redirects {
			fmt.Fprintf(w, "  %s\n", s)
		}
	}
	for _, c := range p.Chains {
		counterexample(w, "chain "+c.Chain, c.Counterexample)
	}
	if p.Rest != nil {
		counterexample(w, "traffic that no chain selects", p.Rest.Counterexample)
	}
	on := "planned rules"
	if p.Live {
		on = "rules in force"
	}
	fmt.Fprintf(w, "\n%s on the %s: %d classes of flows in %s\n", p.Verdict, on, p.Classes,
		time.Duration(p.Took).Round(10*time.Microsecond))
	for _, n := range p.Notes {
		fmt.Fprintf(w, "! %s\n", n)
	}
	return nil
}

func reasonOf(c onpath.ChainVerification) []string {
	switch {
	case c.Reason != "":
		return []string{c.Reason}
	case c.Counterexample != nil:
		return []string{c.Counterexample.Message}
	}
	return nil
}

func counterexample(w io.Writer, about string, x *onpath.Counterexample) {
	if x == nil {
		return
	}
	from := "enters at gateway " + x.Entry
	if x.Instance != "" {
		from = "is emitted by instance " + x.Instance + " on " + x.Entry
	}
	if x.Reverse {
		from += ", against the chain's direction"
	}
	var way []string
	for _, hop := range x.Way {
		way = append(way, hop.Text)
	}
	promised := strings.Join(x.Promised, " → ")
	if promised == "" {
		promised = "nothing"
	}
	fmt.Fprintf(w, "\n%s: refuted by\n  %s\n  %s\n  promised  %s\n  way       %s\n  at %s it %s\n",
		about, tuple(x.Tuple), from, promised, strings.Join(way, " → "), x.At, x.Message)
}
