package render

import (
	"fmt"
	"io"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// CatalogueEntry is a function that comes with onpath, as it is shown.
type CatalogueEntry struct {
	Name       string              `json:"name"`
	Kind       onpath.FunctionKind `json:"kind"`
	For        string              `json:"for"`
	Use        []string            `json:"use"`
	Shows      string              `json:"shows"`
	Parameters []onpath.Parameter  `json:"parameters"`
	Page       string              `json:"page"`
}

// Catalogue writes an entry for people.
func Catalogue(w io.Writer, e *CatalogueEntry) error {
	fmt.Fprintf(w, "%s (%s)\n\nFor     %s\nTested  %s\n\nTo use it:\n", e.Name, e.Kind, e.For, e.Shows)
	for _, line := range e.Use {
		fmt.Fprintf(w, "  %s\n", line)
	}
	fmt.Fprintln(w)
	if len(e.Parameters) > 0 {
		t := table.New("PARAMETER", "TYPE", "DEFAULT", "MEANING")
		for _, p := range e.Parameters {
			t.Row(p.Name, p.Form(), defaultOf(p), p.Description)
		}
		if err := t.Write(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	_, err := io.WriteString(w, strings.TrimSpace(e.Page)+"\n")
	return err
}

func defaultOf(p onpath.Parameter) string {
	switch {
	case p.Required:
		return "(required)"
	case p.Default == nil:
		return ""
	case *p.Default == "":
		return "(empty)"
	}
	return *p.Default
}
