package main

import (
	"bytes"
	"strings"
	"testing"
)

// A file gets one line for each change, of a length that can be read.
func TestProgressIntoFile(t *testing.T) {
	var b bytes.Buffer
	p := newProgress(&b)
	p.show("%s", "chain web: Error:\n  nft: not found")
	p.show("%s", "chain web: Error: nft: not found")
	p.show("%s", strings.Repeat("chain web: is planned · ", 200))
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 2 || lines[0] != "chain web: Error: nft: not found" || len([]rune(lines[1])) > longestLine || !strings.HasSuffix(lines[1], "…") {
		t.Errorf("it got\n%s", b.String())
	}
}

// The options of all commands fit a terminal of 80 columns.
func TestOptionsFitTerminal(t *testing.T) {
	root := newRoot()
	for _, args := range [][]string{nil, {"apply"}, {"up"}, {"node"}, {"demo"}} {
		c, _, err := root.Find(args)
		if err != nil {
			t.Fatal(err)
		}
		_, options, _ := strings.Cut(c.UsageString(), "Flags:\n")
		for line := range strings.Lines(options) {
			if len([]rune(line)) > 81 && strings.Contains(line, " --") {
				t.Errorf("%s: %d columns: %s", c.CommandPath(), len([]rune(line))-1, line)
			}
		}
	}
}
