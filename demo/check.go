package demo

import (
	"fmt"
	"io"

	"github.com/onpath/onpath/cli/table"
)

// Check is one effect that must have been seen.
type Check struct {
	What string `json:"what"`
	Seen bool   `json:"seen"`
	How  string `json:"how"`
}

// Checks are the effects of one demonstration.
type Checks []Check

func (c *Checks) add(seen bool, what, how string, args ...any) {
	*c = append(*c, Check{What: what, Seen: seen, How: fmt.Sprintf(how, args...)})
}

// Failed lists the effects that were not seen.
func (c Checks) Failed() (missing []string) {
	for _, one := range c {
		if !one.Seen {
			missing = append(missing, one.What+" ("+one.How+")")
		}
	}
	return missing
}

func (c Checks) print(w io.Writer) {
	for _, one := range c {
		mark := "seen   "
		if !one.Seen {
			mark = "NOT SEEN"
		}
		_ = table.Paragraph(w, "  "+mark+" ", one.What+": "+one.How)
	}
}
