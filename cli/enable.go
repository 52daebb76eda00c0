package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
)

func newEnable(g *global) *cobra.Command {
	return newSwitch(g, "enable", false, "Have traffic pass a chain, or one of its elements, again", "")
}

func newDisable(g *global) *cobra.Command {
	return newSwitch(g, "disable", true, "Take a chain, or one of its elements, out of traffic",
		"The instances go on: enabling is quick. ")
}

// newSwitch is enable or disable.
func newSwitch(g *global, verb string, disabled bool, short, what string) *cobra.Command {
	a := &applyFlags{global: g}
	element := ""
	c := &cobra.Command{
		Use: verb + " chain NAME", Short: short, GroupID: groupUse,
		Long: short + ".\n" + what + `It writes spec.disabled, or with --element that element's
disabled, as an apply does and with its checks. New flows pass a disabled element
by; those that cross it go on as they are until they end.`,
		Example: examples("onpath "+verb+" chain web", "onpath "+verb+" chain web --element ids --wait"),
		Args:    cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return []string{"chain"}, cobra.ShellCompDirectiveNoFileComp
			}
			return g.completeObjects(c, args, word)
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.check(c); err != nil {
				return err
			}
			args = splitKind(args)
			if kind, err := parseKind(args[0]); err != nil || kind != onpath.KindChain || len(args) < 2 {
				return badUsage("onpath %s chain NAME: which chain? onpath get chains lists them", verb)
			}
			k, err := g.key(onpath.KindChain, args[1])
			if err != nil {
				return err
			}
			cl, err := g.client()
			if err != nil {
				return err
			}
			defer cl.Close()
			o, err := cl.Get(c.Context(), k)
			if err != nil {
				return err
			}
			chain := o.(*onpath.Chain)
			if err := switchElement(chain, element, disabled); err != nil {
				return err
			}
			docs, err := documents([]onpath.Object{chain})
			if err != nil {
				return err
			}
			return a.apply(c, docs)
		},
	}
	c.Flags().StringVar(&element, "element", "", "only the element with this function or deployment")
	a.changeFlags(c)
	g.tenantFlag(c, "tenant of the chain")
	return c
}

// switchElement disables or enables one element, or the chain where none is named.
func switchElement(c *onpath.Chain, element string, disabled bool) error {
	if element == "" {
		c.Spec.Disabled = disabled
		return nil
	}
	var names []string
	for i := range c.Spec.Through {
		e := &c.Spec.Through[i]
		name := string(e.Function + e.Deployment) // exactly one of them is there
		if name == element {
			e.Disabled = disabled
			return nil
		}
		names = append(names, name)
	}
	return onpath.Errorf(onpath.CodeNotFound, "chain %s has no element %q; its elements are %s", c.Metadata.Name, element,
		strings.Join(names, ", "))
}
