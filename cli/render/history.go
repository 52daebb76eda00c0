package render

import (
	"cmp"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/table"
)

// History prints an object's versions, the latest last.
func History(w io.Writer, list []wire.ObjectVersion, now time.Time) error {
	t := table.New("NUMBER", "AGE", "BY", "CHANGES")
	for i, v := range list {
		var changes []string
		for _, d := range v.Diff {
			changes = append(changes, Change(d, 40))
		}
		text := strings.Join(changes, ", ")
		if i == 0 {
			text = "the first one that is kept"
		}
		number := strconv.Itoa(v.Number)
		if v.Current {
			number += " *"
		}
		t.Row(number, Age(v.At, now), cmp.Or(strings.TrimPrefix(v.By, "onpath:"), "-"), cmp.Or(text, "labels or nothing"))
	}
	return t.Write(w)
}
