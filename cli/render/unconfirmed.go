package render

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/table"
)

// mostChanges is how many objects of one apply the table names.
const mostChanges = 10

// Unconfirmed is the table of applies that wait for their confirmation.
func Unconfirmed(w io.Writer, list []wire.Unconfirmed, now time.Time) error {
	t := table.New("ID", ">UNDONE AT", ">IN", "BY", "WHAT IT DID")
	for _, u := range list {
		var did []string
		for i, c := range u.Changes {
			if i == mostChanges && len(u.Changes) > mostChanges+1 {
				did = append(did, fmt.Sprintf("and %d more", len(u.Changes)-i))
				break
			}
			did = append(did, c.Key().String()+" "+Past[c.Action])
		}
		t.Row(u.ID, clock(u.Deadline, now), Age(now, u.Deadline), strings.TrimPrefix(u.By, "onpath:"), strings.Join(did, ", "))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprint(w, "\nkeep one:          onpath confirm ID\ntake it back now:  onpath confirm ID --undo\n")
	return err
}

// Undone says what of an apply is undone. What is left as it is stands below.
func Undone(w io.Writer, id string, done wire.Undone) error {
	words := id + " is undone"
	switch {
	case len(done.Kept) > 0 && len(done.Changes) == 0:
		words = "nothing of " + id + " is undone; it waits no more"
	case len(done.Kept) > 0:
		words += " in part"
	}
	fmt.Fprintln(w, words)
	if len(done.Kept) == 0 {
		return nil
	}
	was := map[wire.Action]string{wire.Created: "is there again", wire.Updated: "is as it was before", wire.Deleted: "is deleted again"}
	for _, c := range done.Changes {
		fmt.Fprintf(w, "%s %s\n", c.Key(), was[c.Action])
	}
	for _, k := range done.Kept {
		fmt.Fprintf(w, "%s %s\n", k.Key(), k.Why)
	}
	return nil
}

// Awaits are lines about what becomes of an object unless it is confirmed.
func Awaits(k onpath.Key, list []wire.Unconfirmed, now time.Time) (lines []string) {
	for _, u := range list {
		i := slices.IndexFunc(u.Changes, func(c wire.ObjectChange) bool { return c.Key() == k })
		if i < 0 {
			continue
		}
		what := "goes back to what it was before"
		if u.Changes[i].Action == wire.Created {
			what = "is deleted again"
		}
		lines = append(lines, fmt.Sprintf("unconfirmed: it %s at %s, in %s, unless: onpath confirm %s", what, clock(u.Deadline, now),
			Age(now, u.Deadline), u.ID))
	}
	return lines
}

// clock is a time of today, or of another day with the date.
func clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// Past is how an action reads once it is done.
var Past = map[wire.Action]string{wire.Created: "created", wire.Updated: "changed", wire.Deleted: "deleted", wire.Unchanged: "unchanged"}

// Would is how an action reads before it is done.
var Would = map[wire.Action]string{wire.Created: "would be created", wire.Updated: "would change", wire.Deleted: "would be deleted"}
