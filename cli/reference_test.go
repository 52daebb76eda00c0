package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath/api"
	"github.com/onpath/onpath/cli/reference"
	"github.com/onpath/onpath/node"
)

//go:generate go test . -run ^TestReference$ -update

var update = flag.Bool("update", false, "write the references instead of comparing them")

const (
	cliReference     = "../docs/reference/cli.md"
	metricsReference = "../docs/reference/metrics.md"
)

// TestReference compares the committed references with the commands and metrics.
func TestReference(t *testing.T) {
	t.Setenv("ONPATH_SERVER", "")
	var codes strings.Builder
	codes.WriteString("\n## Exit codes\n\n| code | meaning |\n|---|---|\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&codes, "| %d | %s |\n", c.code, c.meaning)
	}
	codes.WriteString("\n`onpath exec` and `onpath lab exec` end with the code of the command they ran.\n\nTables are as wide as what they show; on a terminal that is too narrow for it, messages are wrapped. `-o wide` has more columns. Commands that wait for a server which takes their connection and answers nothing give up after about 20 s; a request may take longer, and a watch be silent, as long as the server answers others.\n")
	server, err := api.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		cliReference: reference.CLI(newRoot(), codes.String()),
		metricsReference: reference.Metrics([]reference.Process{
			{Name: "Server", Where: "`/metrics` on the server's socket, and on the listener that `server.metrics` names", Metrics: server},
			{Name: "Node", Where: "`/metrics` on the listener that `node.metrics` names", Metrics: node.Metrics()},
		}),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s is not what the program says (%v); run go generate ./...", file, err)
		}
	}
}

// TestEveryCommandHelps checks that each command says what it does and shows it.
func TestEveryCommandHelps(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" || c.HasParent() && c.Parent().Name() == "completion" || c.HasAvailableSubCommands() {
			return
		}
		switch {
		case c.Short == "" || strings.HasSuffix(c.Short, "."):
			t.Errorf("%s: Short is %q", c.CommandPath(), c.Short)
		case !strings.Contains(c.Example, "onpath "):
			t.Errorf("%s: no example", c.CommandPath())
		case c.Args == nil:
			t.Errorf("%s: takes any arguments", c.CommandPath())
		case !c.HasParent() || c.Parent().Name() == "onpath" && c.GroupID == "":
			t.Errorf("%s: in no group", c.CommandPath())
		}
	}
	walk(newRoot())
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"--version"}, exitOK},
		{[]string{"schema"}, exitOK},
		{[]string{"schemma"}, exitBadInput},
		{[]string{"schema", "x"}, exitBadInput},
		{[]string{"schema", "--nothing"}, exitBadInput},
		{[]string{"lab", "upp"}, exitBadInput},
		{[]string{"lab", "up", "/absent.yaml"}, exitBadInput},
		{[]string{"doctor", "-o", "xml"}, exitBadInput},
	} {
		if got := quietly(t, c.args); got != c.want {
			t.Errorf("onpath %s: exit code %d, want %d", strings.Join(c.args, " "), got, c.want)
		}
	}
	documented := map[int]bool{}
	for _, c := range exitCodes {
		documented[c.code] = true
	}
	for code, exit := range byCode {
		if !documented[exit] {
			t.Errorf("%s: exit code %d is not documented", code, exit)
		}
	}
}

// quietly runs a command line with its output thrown away.
func quietly(t *testing.T, args []string) int {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	out, errs := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = null, null
	defer func() { os.Stdout, os.Stderr = out, errs }()
	return run(args)
}
