package cli

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/render"
)

func newVerify(g *global) *cobra.Command {
	var live bool
	c := &cobra.Command{
		Use: "verify [CHAIN...]", Short: "Prove that chains keep their promise, or refute it by a flow", GroupID: groupSee,
		Long: `Prove on the compiled rules of the whole network that every flow which a chain
selects crosses its elements in order, in both directions, and that nothing
bypasses them and nothing else is steered; or show a flow for which that is not
so: its addresses and ports, where it starts, and where it leaves the promised
way. All flows are looked at, as sets; no packet is sent.

Where no element of a chain changes packets the proof is end to end; behind an
element that rewrites or originates it goes on segment by segment. Without names
all chains are proved, and that traffic which no chain selects is left alone.

The exit code is 9 if anything is refuted. With --live it is 4 if anything rests on
a node that cannot be asked what it has in force: that is unproven. docs/verify.md
says what is proved and what is not.`,
		Example: examples("onpath verify", "onpath verify web --live", "onpath verify -o json"),
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: g.completeKind(onpath.KindChain),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			p, err := cl.Verify(c.Context(), args, live)
			if err != nil {
				return err
			}
			if err := g.print(c, p, func(w io.Writer) error { return render.Verification(w, p) }); err != nil {
				return err
			}
			switch {
			case p.Verdict == onpath.VerdictRefuted:
				return exitStatus(exitRefuted)
			case p.Verdict == onpath.VerdictUnproven && len(p.NoReport) > 0:
				return unasked(p.NoReport)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&live, "live", false, "the rules that nodes have acknowledged, not the newest planned")
	return c
}

// unasked is the error of a live proof that lacks nodes.
func unasked(nodes []string) error {
	e := onpath.Errorf(onpath.CodeUnavailable, "what rests on node %s is not proved: it cannot be asked what is in force there",
		strings.Join(nodes, ", "))
	e.Remedy = "start `onpath node` there and run it again; a machine that is gone for good is taken out by onpath delete node --force"
	return e
}
