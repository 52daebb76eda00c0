package reference

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CLI describes a command and all its subcommands as Markdown. after comes
// behind the table of contents.
func CLI(root *cobra.Command, after string) string {
	var b strings.Builder
	name := root.Name()
	fmt.Fprintf(&b, "# Command line\n\n%s\n\nThis page is made from the program; `go generate ./...` rebuilds it.\n\n", root.Long)
	var all []*cobra.Command
	collect(root, &all)
	b.WriteString("| command | |\n|---|---|\n")
	for _, c := range all {
		path := strings.TrimPrefix(c.CommandPath(), name+" ")
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", path, anchor(c.CommandPath()), c.Short)
	}
	fmt.Fprintf(&b, "\n## All commands\n\n%s\n%s", flags(root.PersistentFlags()), after)
	for _, c := range all {
		fmt.Fprintf(&b, "\n## %s\n\n", c.CommandPath())
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		fmt.Fprintf(&b, "%s\n\n```\n%s\n```\n", text, strings.TrimSuffix(c.UseLine(), " [flags]"))
		if c.Example != "" {
			fmt.Fprintf(&b, "\nExamples:\n\n```sh\n%s\n```\n", unindent(c.Example))
		}
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && root.PersistentFlags().Lookup(f.Name) == nil {
				own.AddFlag(f)
			}
		})
		if table := flags(own); table != "" {
			b.WriteString("\n" + table)
		}
	}
	return b.String()
}

// collect lists the commands that do something, in the order of their names.
func collect(c *cobra.Command, all *[]*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		if !sub.HasAvailableSubCommands() || sub.Args != nil && sub.Flags().HasFlags() {
			*all = append(*all, sub)
		}
		collect(sub, all)
	}
}

func flags(set *pflag.FlagSet) string {
	var b strings.Builder
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		flag := "--" + f.Name
		if f.Shorthand != "" {
			flag = "-" + f.Shorthand + ", " + flag
		}
		if kind != "" {
			flag += " " + kind
		}
		if zero := f.DefValue; zero != "" && zero != "false" && zero != "0" && zero != "[]" && zero != "0s" && !strings.Contains(usage, "(default") {
			usage += " (default " + zero + ")"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", flag, strings.ReplaceAll(usage, "|", "\\|"))
	})
	if b.Len() == 0 {
		return ""
	}
	return "| flag | |\n|---|---|\n" + b.String()
}

func unindent(s string) string {
	lines := strings.Split(strings.Trim(s, "\n"), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimPrefix(l, "  ")
	}
	return strings.Join(lines, "\n")
}

func anchor(s string) string { return strings.ReplaceAll(strings.ToLower(s), " ", "-") }
