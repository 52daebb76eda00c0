package render

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/chart"
	"github.com/onpath/onpath/cli/table"
)

// Scaling tells how a chain was scaled.
func Scaling(w io.Writer, o *onpath.Chain) error {
	s := o.Status.Scaling
	if len(s.Decisions) > 0 {
		t := table.New("TIME", "TOOK", "DECISION", "COST/H")
		for _, d := range s.Decisions {
			t.Row(d.Time.Local().Format(time.TimeOnly), took(d), d.Text, fmt.Sprint(d.Cost))
		}
		if err := t.Write(w); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return table.Paragraph(w, "", scalingNow(o))
}

func took(d onpath.ScalingDecision) string {
	if d.Took == 0 {
		return "-"
	}
	return onpath.Duration(time.Duration(d.Took).Round(100 * time.Millisecond)).String()
}

// scalingNow says how things stand.
func scalingNow(o *onpath.Chain) string {
	s := o.Status.Scaling
	var parts []string
	for _, name := range o.ElementNames() {
		e, ok := o.Spec.Scaling.Elements[name]
		if n, has := s.Wanted[name]; ok && has {
			parts = append(parts, fmt.Sprintf("%d %s (%d to %d)", n, name, e.Min, e.Max))
		}
	}
	text := "Now: " + strings.Join(parts, ", ") + ". "
	switch {
	case s.Trial != nil:
		var what []string
		for _, name := range o.ElementNames() {
			if n, ok := s.Trial.To[name]; ok {
				what = append(what, fmt.Sprintf("%s %d → %d", name, s.Trial.From[name], n))
			}
		}
		text += "On trial: " + strings.Join(what, ", ") + "."
	case s.Phase == onpath.ScalingStopped:
		text += "Stopped: " + s.Message + "."
	case s.Phase == onpath.ScalingHeld:
		text += "Held: " + s.Message + "."
	case s.Session != nil:
		text += "Between two trials."
	case !s.Resting.IsZero():
		text += "Watching; nothing is tried before " + s.Resting.Local().Format(time.TimeOnly) + "."
	default:
		text += "Watching."
	}
	return text
}

// ScalingPage is the decisions as one page with plots, which loads nothing.
func ScalingPage(w io.Writer, o *onpath.Chain) error {
	s := o.Status.Scaling
	values := chart.Series{Name: "value"}
	numbers := map[string]*chart.Series{}
	var first time.Time
	at := func(t time.Time) float64 {
		if first.IsZero() {
			first = t
		}
		return t.Sub(first).Seconds()
	}
	for _, d := range s.Decisions {
		began := d.Time.Add(-time.Duration(d.Took))
		if d.Before != 0 || d.After != 0 {
			values.Points = append(values.Points, chart.Point{X: at(began), Y: d.Before}, chart.Point{X: at(d.Time), Y: d.After})
		}
		for name, n := range d.To {
			if numbers[name] == nil {
				numbers[name] = &chart.Series{Name: name, Steps: true}
			}
			end := n
			if !d.Kept {
				end = d.From[name]
			}
			numbers[name].Points = append(numbers[name].Points, chart.Point{X: at(began), Y: float64(d.From[name])},
				chart.Point{X: at(began), Y: float64(n)}, chart.Point{X: at(d.Time), Y: float64(end)})
		}
	}
	counts := chart.Lines{Title: "Instances", X: "seconds", Y: "instances"}
	for _, name := range o.ElementNames() {
		if n := numbers[name]; n != nil { // before its first decision and after its last one, too
			last := at(s.Decisions[len(s.Decisions)-1].Time)
			n.Points = append(append([]chart.Point{{X: 0, Y: n.Points[0].Y}}, n.Points...),
				chart.Point{X: last, Y: n.Points[len(n.Points)-1].Y})
			counts.Series = append(counts.Series, *n)
		}
	}
	var rows strings.Builder
	for _, d := range slices.Backward(s.Decisions) {
		fmt.Fprintf(&rows, "<tr><td>%s</td><td>%s</td><td>%s</td><td>%d</td></tr>\n",
			d.Time.Local().Format(time.DateTime), took(d), html.EscapeString(d.Text), d.Cost)
	}
	plot := chart.Lines{Title: "Value before and during each trial", X: "seconds", Y: "value", Series: []chart.Series{values}}
	_, err := fmt.Fprintf(w, scalingPage, html.EscapeString(onpath.KeyOf(o).String()), html.EscapeString(scalingNow(o)),
		plot.SVG(), counts.SVG(), rows.String())
	return err
}

const scalingPage = `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Scaling of %[1]s</title>
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse}td,th{padding:.2em .8em .2em 0;text-align:left;vertical-align:top}svg{max-width:100%%}</style>
<h1>Scaling of %[1]s</h1>
<p>%[2]s</p>
%[3]s
%[4]s
<table><tr><th>Time</th><th>Took</th><th>Decision</th><th>Cost/h</th></tr>
%[5]s</table>
</html>
`
