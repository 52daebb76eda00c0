package cli

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/render"
)

func newAccount(g *global) *cobra.Command {
	c := &cobra.Command{
		Use: "account [TENANT]", Short: "Show what a tenant has, and take money in", GroupID: groupSee,
		Long: `Show what is left in a tenant's account. Reservations are paid from it when they
are admitted; what is not there cannot be spent.`,
		Example: examples("onpath account acme", "onpath account credit acme 250 --reference 'transfer 4711'"),
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: g.completeKind(onpath.KindTenant),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			a, err := cl.Pool().Account(c.Context(), tenantArg(args))
			if err != nil {
				return err
			}
			return g.printAccount(c, a)
		},
	}
	c.AddCommand(newAccountEntry(g, onpath.PostingCredit, "credit", "Enter money that a tenant paid in"),
		newAccountEntry(g, onpath.PostingPayout, "payout", "Enter money that a tenant was given back"), newAccountCorrect(g))
	return c
}

func tenantArg(args []string) string {
	if len(args) > 0 {
		return args[0]
	}
	return onpath.DefaultTenant
}

func (g *global) printAccount(c *cobra.Command, a *onpath.Account) error {
	return g.print(c, a, func(w io.Writer) error {
		amount := a.Balance.String() + " " + cmp.Or(a.Currency, "(in units of the price list)")
		_, err := fmt.Fprintf(w, "tenant %s has %s\n", a.Tenant, amount)
		return err
	})
}

// newAccountEntry is the command that enters a credit or a payout.
func newAccountEntry(g *global, kind onpath.PostingKind, use, short string) *cobra.Command {
	e := onpath.MoneyEntry{Kind: kind}
	c := &cobra.Command{
		Use: use + " TENANT AMOUNT --reference TRANSFER", DisableFlagsInUseLine: true, Short: short,
		Long: short + `. The reference keeps an amount from being entered twice:
the same again changes nothing, another amount by the same reference is refused.`,
		Example: examples("onpath account " + use + " acme 250 --reference 'transfer 4711'"),
		Args:    cobra.ExactArgs(2), ValidArgsFunction: g.completeKind(onpath.KindTenant),
		RunE: func(c *cobra.Command, args []string) error {
			if err := e.Amount.UnmarshalText([]byte(args[1])); err != nil {
				return badUsage("%w", err)
			}
			if e.Reference == "" {
				return badUsage("name what is entered: --reference 'transfer 4711'")
			}
			return g.enterMoney(c, args[0], e)
		},
	}
	c.Flags().StringVar(&e.Reference, "reference", "", "`number` of the transfer, or another name that the tenant's account has once")
	c.Flags().StringVar(&e.Cause, "for", "", "what it is for, in words")
	return c
}

func newAccountCorrect(g *global) *cobra.Command {
	e := onpath.MoneyEntry{Kind: onpath.PostingCorrection}
	c := &cobra.Command{
		Use: "correct TENANT NUMBER", Short: "Take back a credit or payout that was a mistake",
		Long: `Take back a credit or payout that was a mistake. Nothing is deleted: another posting
moves the amount back, and names the posting that it reverses. An account that has
spent the amount falls below zero. onpath ledger list shows the numbers.`,
		Example: examples("onpath account correct acme 17 --for 'paid in by another tenant'"),
		Args:    cobra.ExactArgs(2), ValidArgsFunction: g.completeKind(onpath.KindTenant),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if e.Reverses, err = strconv.ParseInt(args[1], 10, 64); err != nil || e.Reverses < 1 {
				return badUsage("%q is no number of a posting; see onpath ledger list %s", args[1], args[0])
			}
			return g.enterMoney(c, args[0], e)
		},
	}
	c.Flags().StringVar(&e.Cause, "for", "", "what it is for, in words")
	return c
}

func (g *global) enterMoney(c *cobra.Command, tenant string, e onpath.MoneyEntry) error {
	cl, err := clientToPrint(g)
	if err != nil {
		return err
	}
	defer cl.Close()
	a, err := cl.Pool().Enter(c.Context(), tenant, e)
	if err != nil {
		return err
	}
	return g.printAccount(c, a)
}

func newInvoice(g *global) *cobra.Command {
	var month string
	var asCSV bool
	c := &cobra.Command{
		Use: "invoice [TENANT]", Short: "Show what a tenant's month cost", GroupID: groupSee,
		Long: `Show what a tenant's reservations of one month (in UTC) were charged, what was
given back, and what instances used. The table rounds to cents; JSON, YAML and CSV
give every millionth.`,
		Example: examples("onpath invoice acme", "onpath invoice acme --month 2026-11 --csv > acme.csv"),
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: g.completeKind(onpath.KindTenant),
		RunE: func(c *cobra.Command, args []string) error {
			if err := g.checkOutput(); err != nil {
				return err
			}
			if month == "" {
				month = time.Now().UTC().Format("2006-01")
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			inv, err := cl.Pool().Invoice(c.Context(), tenantArg(args), month)
			if err != nil {
				return err
			}
			if asCSV {
				return render.InvoiceCSV(c.OutOrStdout(), inv)
			}
			return g.print(c, inv, func(w io.Writer) error { return render.Invoice(w, inv) })
		},
	}
	c.Flags().StringVar(&month, "month", "", "such as 2026-11; default the present one")
	c.Flags().BoolVar(&asCSV, "csv", false, "write comma-separated values")
	return c
}

func newLedger(g *global) *cobra.Command {
	c := &cobra.Command{Use: "ledger", Short: "List postings, and check the ledger", GroupID: groupSee, Args: cobra.NoArgs, RunE: noCommand}
	c.AddCommand(newLedgerList(g), newLedgerDays(g), &cobra.Command{
		Use: "check", Short: "Recompute every posting and every balance",
		Long: `Recompute every posting from what it was charged for and the price list of its
time, and every balance from its postings. Files of closed days are read whole, and
compared with their hashes, their signatures and the balances in the store. Exit
code 1: something differs, or a file is not there.`,
		Example: examples("onpath ledger check"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			l, err := cl.Pool().CheckLedger(c.Context())
			if err != nil {
				return err
			}
			err = g.print(c, l, func(w io.Writer) error {
				for _, wrong := range l.Wrong {
					fmt.Fprintln(w, wrong)
				}
				files := ""
				if l.Days > 0 {
					files = fmt.Sprintf(" and the files of %d days", l.Days)
				}
				_, err := fmt.Fprintf(w, "%d postings of %d tenants%s recomputed, %d wrong\n", l.Postings, l.Tenants, files, len(l.Wrong))
				return err
			})
			if err == nil && len(l.Wrong) > 0 {
				return onpath.Errorf(onpath.CodeInternal, "the ledger is wrong in %d places", len(l.Wrong))
			}
			return err
		},
	})
	return c
}

func newLedgerList(g *global) *cobra.Command {
	var from int64
	var limit int
	c := &cobra.Command{
		Use: "list [TENANT]", Short: "List a tenant's postings",
		Long: `List a tenant's postings, each with its number, cause and amount: the newest ones,
or those from a number on. JSON and YAML also tell what each was charged for, and the
number from which to go on.`,
		Example: examples("onpath ledger list acme", "onpath ledger list acme --from 1 --limit 1000 -o json"),
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: g.completeKind(onpath.KindTenant),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			page, err := cl.Pool().Postings(c.Context(), tenantArg(args), from, limit)
			if err != nil {
				return err
			}
			return g.print(c, page, func(w io.Writer) error { return render.Postings(w, page) })
		},
	}
	c.Flags().Int64Var(&from, "from", 0, "number of the first one; 0: the newest ones")
	c.Flags().IntVar(&limit, "limit", 100, "how many, at most 1000")
	return c
}

func newLedgerDays(g *global) *cobra.Command {
	return &cobra.Command{
		Use: "days", Short: "List the closed days, and the files that hold them",
		Long: `List the closed days of the ledger: how many postings, and reservations that were
over, the file of each holds. The files lie in the folder ledger of the server's.`,
		Example: examples("onpath ledger days"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := clientToPrint(g)
			if err != nil {
				return err
			}
			defer cl.Close()
			days, err := cl.Pool().LedgerDays(c.Context())
			if err != nil {
				return err
			}
			return g.print(c, days, func(w io.Writer) error { return render.LedgerDays(w, days) })
		},
	}
}
