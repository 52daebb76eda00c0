package cli

import (
	"encoding/json"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
)

// The forms of output.
const (
	outTable = "table"
	outJSON  = "json"
	outYAML  = "yaml"
	outWide  = "wide" // a table with more columns; of commands that list objects
	outName  = "name" // names alone; likewise
)

var outputs = []string{outTable, outJSON, outYAML}

// checkOutput refuses other forms than the usual ones and more, before anything
// is done.
func (g *global) checkOutput(more ...string) error {
	known := slices.Concat(outputs, more)
	if slices.Contains(known, g.output) {
		return nil
	}
	hint := ""
	if w := onpath.Nearest(g.output, known); w != "" {
		hint = "; did you mean " + w + "?"
	}
	return badUsage("-o %s is not one of %s%s", g.output, strings.Join(known, ", "), hint)
}

// clientToPrint connects to the server for a command that prints the reply as -o says.
func clientToPrint(g *global) (*client.Client, error) {
	if err := g.checkOutput(); err != nil {
		return nil, err
	}
	return g.client()
}

// print writes value as JSON or YAML, or calls asTable.
func (g *global) print(c *cobra.Command, value any, asTable func(w io.Writer) error) error {
	w := c.OutOrStdout()
	switch g.output {
	case outJSON:
		return printJSON(w, value)
	case outYAML:
		if list, ok := value.([]onpath.Object); ok {
			return manifest.Encode(w, list...)
		}
		return manifest.EncodeValue(w, value)
	}
	return asTable(w)
}

func printJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}
