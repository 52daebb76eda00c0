package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A file gets each line once, of a length that can be read.
func TestProgressIntoFile(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	p.show("%s", "chain web: Error:\n  nft: not found")
	p.show("%s", "chain web: Error: nft: not found")
	p.show("%s", "chain web: is planned")
	for _, wait := range []string{"1s", "2s", "4s", "1m30s"} {
		p.show("chain web: fw 0/1 (instance web-fw-1 failed: exited with code 1; next attempt in %s)", wait)
	}
	p.show("%s", "chain web: Error: nft: not found")
	p.show("%s", strings.Repeat("chain web: is planned · ", 200))
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 4 || lines[0] != "chain web: Error: nft: not found" || len([]rune(lines[3])) > longestLine ||
		!strings.HasSuffix(lines[3], "…") || lines[2] != "chain web: fw 0/1 (instance web-fw-1 failed: exited with code 1)" {
		t.Errorf("it got\n%s", b.String())
	}
}

// The help of all commands fits a terminal of 80 columns.
func TestHelpFitsTerminal(t *testing.T) {
	var check func(*cobra.Command)
	check = func(c *cobra.Command) {
		for line := range strings.Lines(c.Long + "\n" + c.UsageString()) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
				t.Errorf("%s: %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	check(newRoot())
}
