package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench"
	"github.com/onpath/onpath/cli/table"
)

// checkAgainst refuses what does not go with --against.
func (b *benchFlags) checkAgainst() error {
	if b.html != "" || b.markdown != "" {
		return badUsage("--against makes a table or --json, no page")
	}
	if b.Rounds == 0 {
		b.Rounds = bench.AgainstRounds
	}
	if b.Rounds < bench.AgainstRounds && !b.Quick {
		return badUsage("--against needs at least %d rounds: fewer tell chance from speed badly", bench.AgainstRounds)
	}
	return nil
}

// runAgainst compares this program with another one; slower is an error.
func (b *benchFlags) runAgainst(c *cobra.Command) error {
	a, err := bench.RunAgainst(c.Context(), b.Options, b.against)
	if err != nil {
		return err
	}
	if err := writeAgainst(c.OutOrStdout(), a); err != nil {
		return err
	}
	if b.json != "" {
		data, err := json.MarshalIndent(a, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(b.json, append(data, '\n'), 0o644); err != nil {
			return fmt.Errorf("write the comparison: %w", err)
		}
	}
	if slower := a.Slower(); len(slower) > 0 && !b.Quick {
		e := onpath.Errorf(onpath.CodeInternal, "%d of %d figures are slower than before: the upper quartile of the ratio is below %g",
			len(slower), len(a.Ratios), bench.AgainstLeast)
		e.Remedy = "see the table; repeat it on an idle machine before you believe it"
		return e
	}
	return nil
}

func writeAgainst(w io.Writer, a *bench.Against) error {
	if _, err := fmt.Fprintf(w, "this:  %s\nother: %s\n%d rounds; a ratio above 1 says that this one is faster\n\n", a.This,
		a.Other, a.Rounds); err != nil {
		return err
	}
	t := table.New("BENCHMARK", "CASE", "CONTESTANT", "METRIC", ">THIS", ">OTHER", "UNIT", ">LOW", ">MEDIAN", ">HIGH", "VERDICT")
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
	for _, r := range a.Ratios {
		verdict := "ok"
		if r.Slower() {
			verdict = "SLOWER"
		}
		t.Row(r.Benchmark, r.Case, r.Contestant, r.Metric, number(r.This), number(r.Other), r.Unit,
			fmt.Sprintf("%.3f", r.Low), fmt.Sprintf("%.3f", r.Median), fmt.Sprintf("%.3f", r.High), verdict)
	}
	return t.Write(w)
}
