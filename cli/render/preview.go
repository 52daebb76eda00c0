package render

import (
	"fmt"
	"io"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// Preview prints what a change would do to instances and rules.
func Preview(w io.Writer, p *onpath.Preview) error {
	if len(p.Instances) == 0 && len(p.Rules) == 0 {
		fmt.Fprintln(w, "no instance and no rule would change")
	}
	if len(p.Instances) > 0 {
		t := table.New("INSTANCES", "DEPLOYMENT", "NODE", "NAME", "WHY")
		for _, i := range p.Instances {
			t.Row(string(i.Action), i.Tenant+"/"+i.Deployment, i.Node, i.Name, i.Reason)
		}
		if err := t.Write(w); err != nil {
			return err
		}
	}
	if len(p.Rules) > 0 {
		t := table.New("RULES", "NODE", ">ADDED", ">REMOVED")
		for _, r := range p.Rules {
			t.Row("", r.Node, fmt.Sprintf("+%d", r.Added), fmt.Sprintf("-%d", r.Removed))
		}
		if err := t.Write(w); err != nil {
			return err
		}
	}
	Notes(w, p.Notes)
	return nil
}

// Notes prints what else is worth knowing of a change.
func Notes(w io.Writer, notes []string) {
	for _, n := range notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
}
