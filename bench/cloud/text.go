package cloud

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/onpath/onpath/cli/table"
	"github.com/onpath/onpath/measure/trial"
)

// published is what GNFC's authors found in EC2, of each kind of machine: round trip in
// milliseconds and throughput in Mbit/s, by GRE and by VXLAN (Table III).
var published = []struct {
	machine              string
	gre, vxlan           float64
	greThrough, vxThroug float64
}{
	{"t2.micro", 0.61, 0.65, 214.5, 215.5}, {"t2.small", 0.64, 0.62, 232.5, 236.5}, {"t2.medium", 0.49, 0.51, 292.5, 300},
	{"m3.medium", 0.48, 0.47, 290.5, 286.5}, {"m3.large", 0.39, 0.42, 608, 579}, {"m3.2xlarge", 0.33, 0.37, 745, 696.5},
	{"c4.large", 0.23, 0.25, 380, 380},
}

// passes are what GNFC's authors found to pass (Table I).
var passes = map[string][3]string{
	trial.GRE:        {"yes", "no", "no"},
	trial.TunnelPort: {"yes", "yes", "yes"},
}

// Text prints the tables, with the published figures beside.
func (r *Report) Text(w io.Writer) error {
	if err := r.passing(w); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nFrom %s to %s, directly and through a function on %s (%s): median, and the quartiles (GNFC, Figures 3 and 4)\n",
		r.From, r.To, r.Through, cmp.Or(r.Type, "its type is not named"))
	t := table.New("WAY", ">TCP MBIT/S", ">UDP MBIT/S", ">ROUND TRIP MS", "NOT MEASURED")
	for _, way := range r.Ways {
		t.Row(way.Name, mega(way.TCP), mega(way.UDP), of(way.RoundTrip, 1, 3), strings.Join(way.Why, "; "))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	r.ratios(w)
	fmt.Fprintf(w, "\nRound trips are by %s. Published of round trips: EC2's c4.large 0.3 ms, GCE 1 ms, Azure's A2 2.3 ms.\n", r.Echo)
	fmt.Fprintln(w, "\nPublished, by tunnel, through a software switch in EC2 (GNFC, Table III)")
	t = table.New("MACHINE", ">GRE MS", ">VXLAN MS", ">GRE MBIT/S", ">VXLAN MBIT/S")
	for _, p := range published {
		t.Row(p.machine, number(p.gre, 2), number(p.vxlan, 2), number(p.greThrough, 1), number(p.vxThroug, 1))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	if r.Quick {
		fmt.Fprintln(w, "\nA quick run shows what works; its figures mean nothing.")
	}
	return nil
}

// passing is what the network lets through.
func (r *Report) passing(w io.Writer) error {
	fmt.Fprintln(w, "Which packets arrive (GNFC, Table I: published of EC2, Azure, GCE)")
	head := []string{"PACKET"}
	for _, p := range r.Pairs {
		head = append(head, p.From+" → "+p.To)
	}
	t := table.New(append(head, "EC2", "AZURE", "GCE")...)
	var seen []trial.Packet
	for _, p := range r.Pairs {
		if len(p.Packets) > 0 {
			seen = p.Packets
		}
	}
	cells := func(name string, of func(trial.Result) string) {
		row := []string{name}
		for _, p := range r.Pairs {
			cell := "?"
			if len(p.Packets) > 0 {
				cell = of(trial.Result{Packets: p.Packets})
			}
			row = append(row, cell)
		}
		known := passes[name]
		t.Row(append(row, known[:]...)...)
	}
	for _, p := range seen {
		if p.Size == 0 {
			cells(p.Name, func(t trial.Result) string { return yesNo(t.Passes(p.Name)) })
		}
	}
	cells("largest packet, bytes", func(t trial.Result) string { return strconv.Itoa(t.Largest()) })
	cells("hop limit of 64 becomes", func(t trial.Result) string { p, _ := t.Find(trial.UDP); return strconv.Itoa(p.HopLimit) })
	cells("source address becomes", func(t trial.Result) string {
		if p, _ := t.Find(trial.UDP); p.Arrived {
			return p.Source.String()
		}
		return ""
	})
	err := t.Write(w)
	for _, p := range r.Pairs {
		if p.Why != "" {
			fmt.Fprintf(w, "%s → %s: %s\n", p.From, p.To, p.Why)
		}
	}
	return err
}

// ratios compares each tunnel with the direct way.
func (r *Report) ratios(w io.Writer) {
	k := slices.IndexFunc(r.Ways, func(w Way) bool { return w.Name == direct })
	if k < 0 {
		return
	}
	base := r.Ways[k]
	for i, way := range r.Ways {
		if i == k {
			continue
		}
		for _, m := range []struct {
			name     string
			got, was *Figure
		}{{"TCP", way.TCP, base.TCP}, {"UDP", way.UDP, base.UDP}, {"round trip", way.RoundTrip, base.RoundTrip}} {
			if m.got != nil && m.was != nil && m.was.Median > 0 {
				fmt.Fprintf(w, "%s, %s: %.2f of direct\n", way.Name, m.name, m.got.Median/m.was.Median)
			}
		}
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func mega(f *Figure) string { return of(f, 1e6, 1) }

func of(f *Figure, unit float64, digits int) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%s (%s–%s)", number(f.Median/unit, digits), number(f.Low/unit, digits), number(f.High/unit, digits))
}

func number(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }
