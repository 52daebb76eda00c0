package render

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// FlowWatch prints what became of a flow's packets, hop by hop.
func FlowWatch(w io.Writer, f *onpath.FlowWatch) error {
	fmt.Fprintf(w, "%s   %s\n", tuple(f.Tuple), f.Time.Local().Format(time.TimeOnly))
	for _, way := range []struct {
		name string
		hops []onpath.WatchHop
	}{{"forward", f.Forward}, {"reverse", f.Reverse}, {"elsewhere", f.Elsewhere}} {
		if len(way.hops) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", way.name)
		t := table.New("HOP", "NODE", "NAME", ">IN", ">OUT", ">FUNCTION", ">LOST-BEFORE", "DROPPED", "NOTE")
		for _, h := range way.hops {
			note := h.Message
			if h.Tuple != nil {
				note = strings.TrimSpace("as " + tuple(*h.Tuple) + "  " + note)
			}
			real, ended := lost(h.Dropped)
			if ended > 0 {
				note = strings.TrimSuffix(ofMirror(ended)+"; "+note, "; ")
			}
			kind := string(h.Kind)
			if h.Mode == onpath.ModeMirror {
				kind = "mirror"
			}
			t.Row(kind, h.Node, shortName(h.Name), fmt.Sprint(h.In.Packets), fmt.Sprint(h.Out.Packets), nonzero(h.Function),
				nonzero(h.Lost), reasons(real), note)
		}
		if err := t.Write(w); err != nil {
			return err
		}
	}
	for _, warning := range f.Warnings {
		fmt.Fprintf(w, "! %s\n", warning)
	}
	return nil
}

func nonzero(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func reasons(m map[onpath.DropReason]uint64) string {
	var out []string
	for _, r := range slices.Sorted(maps.Keys(m)) {
		if m[r] > 0 {
			out = append(out, fmt.Sprintf("%s %d", r, m[r]))
		}
	}
	return strings.Join(out, ", ")
}
