package cli

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// version is the version that the linker set.
var version = ""

// versionString is the linker's version, else what Go noted of the source.
func versionString() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision != "" {
		return revision + dirty
	}
	return info.Main.Version
}

// The groups of commands in the help.
const (
	groupUse    = "use"
	groupSee    = "see"
	groupRun    = "run"
	groupAround = "around"
)

func newRoot() *cobra.Command {
	g := &global{}
	root := &cobra.Command{
		Use:   "onpath",
		Short: "Run in-network services: chains of functions on the way of real traffic",
		Long: `onpath sends chosen traffic through chains of functions, which are ordinary
containers, on machines near the traffic; the end points notice nothing.

Begin with "onpath demo", or with "onpath doctor" and then "onpath up".`,
		Version:       versionString(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE:          noCommand,
	}
	root.AddGroup(
		&cobra.Group{ID: groupUse, Title: "Objects:"},
		&cobra.Group{ID: groupSee, Title: "Seeing:"},
		&cobra.Group{ID: groupRun, Title: "Running:"},
		&cobra.Group{ID: groupAround, Title: "Around:"},
	)
	root.SetHelpCommandGroupID(groupAround)
	root.SetCompletionCommandGroupID(groupAround)
	root.SetVersionTemplate("onpath {{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth+1)))
	root.SetFlagErrorFunc(wrongFlag)
	g.flags(root)
	for _, add := range commands {
		root.AddCommand(add(g))
	}
	root.SetHelpCommand(newHelp())
	finish(root)
	g.completeFlags(root)
	return root
}

// helpWidth is the longest line of help texts, in characters: a terminal has 80.
const helpWidth = 79

// commands make the subcommands.
var commands = []func(*global) *cobra.Command{
	newEngine, newApply, newDiff, newAttach, newDetach, newAccelerate, newConfirm, newGet, newDescribe, newDelete, newHistory,
	newRollback, newEnable, newDisable, newWatch, newExplain, newMetric,
	newTrace, newMeasure, newVerify, newScaling, newTop, newEvents, newNotifications, newWebhook, newConsole,
	newLogs, newExec, newCapture, newFault,
	newLogCommand, newAudit,
	newDrain, newCordon, newUncordon, newMove, newCapacity, newAccount, newInvoice, newLedger,
	newToken, newRevoke, newRotate, newJoin, newLab,
	newRelay, newWireGuard, newUp, newServer, newBackup, newRestore, newNode, newDoctor, newSchema, newVersion, newMan,
	newCatalogue, newImages, newWanopt, newDemo, newBench, newFunction, newSignal, newPublisher,
}

// addCompletion adds cobra's own command, once it is known where root prints to, with an
// error for a shell that it does not know.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args, c.RunE = cobra.ArbitraryArgs, noCommand
			finish(c)
		}
	}
}

// newHelp is cobra's own command, which takes any words, with an error for those
// that are no command.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND…]", Short: "Show the help of a command", Args: cobra.ArbitraryArgs,
		Example: examples("onpath help apply", "onpath help lab up"),
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			about, _, err := c.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return commandNames(about), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil {
				return badUsage("%w", err)
			}
			if len(rest) > 0 {
				return noCommand(about, rest)
			}
			about.InitDefaultHelpFlag()
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

// finish makes wrong arguments errors of usage, everywhere alike.
func finish(c *cobra.Command) {
	if c.Long != "" {
		c.Long = table.Fill(c.Long, helpWidth)
	}
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return wrongArgs(c, err)
			}
			return nil
		}
	}
	if c.PreRunE == nil {
		c.PreRunE = func(c *cobra.Command, _ []string) error {
			if err := c.ValidateRequiredFlags(); err != nil {
				return missingFlags(c, err)
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		finish(sub)
	}
}

// group is a command that only has subcommands.
func group(use, short, in string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, GroupID: in, Args: cobra.ArbitraryArgs, RunE: noCommand}
	c.AddCommand(subs...)
	return c
}

// noCommand is what a command with subcommands does by itself: help, or say
// which subcommand was meant.
func noCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	names := commandNames(c)
	if hint, ok := elsewhere[args[0]]; ok && !c.HasParent() {
		return badUsage("onpath has no command %s; %s", args[0], hint)
	}
	if w := onpath.Nearest(args[0], names); w != "" {
		return badUsage("%s has no command %q; did you mean %s?", c.CommandPath(), args[0], w)
	}
	return badUsage("%s has no command %q; see %s --help", c.CommandPath(), args[0], c.CommandPath())
}

// commandNames are the subcommands that the help shows.
func commandNames(c *cobra.Command) (names []string) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// examples indents examples for the help.
func examples(lines ...string) string {
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\n")
		}
		indent := "  "
		for len(line) > helpWidth-6 { // goes on in the next line, as a shell reads it
			at := strings.LastIndex(line[:helpWidth-6], " ")
			if at < 0 {
				break
			}
			b.WriteString(indent + line[:at] + " \\\n")
			indent, line = "      ", line[at+1:]
		}
		b.WriteString(indent + line)
	}
	return b.String()
}
