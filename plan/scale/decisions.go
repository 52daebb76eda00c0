package scale

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/onpath/onpath"
)

// trialText tells what came of a trial: "ids 3 → 4: +2 %, below 5 %, taken back; saves
// 1 unit/h".
func (s *Scaler) trialText(v *View, t *onpath.ScalingTrial, kept bool, after onpath.MetricStats, g gain, why string) string {
	text := numbersText(v, t.From, t.To) + ": "
	improve := onpath.Percent(s.Spec.Improve)
	if after.N > 0 {
		text += fmt.Sprintf("%s (%s → %s), ", percentText(g.change), valueText(t.Before[s.Name].Mean), valueText(after.Mean))
	}
	if why != "" {
		text += why + ", "
	}
	difference := v.cost(with(s.Status.Wanted, t.To)) - v.cost(with(s.Status.Wanted, t.From))
	switch up := grows(t); {
	case up && kept:
		return text + fmt.Sprintf("kept; costs %s", costText(difference))
	case up && after.N > 0 && g.change < float64(s.Spec.Improve):
		return text + fmt.Sprintf("below %s, taken back; saves %s", improve, costText(difference))
	case up && after.N > 0:
		return text + fmt.Sprintf("not certain, taken back; saves %s", costText(difference))
	case up:
		return text + "taken back" // nobody knows what it would have brought
	case kept:
		return text + fmt.Sprintf("kept; saves %s", costText(-difference))
	case after.N > 0 && g.change > -float64(s.Spec.Improve):
		return text + "not certain that nothing is lost, taken back"
	}
	return text + "taken back"
}

// numbersText is "ids 3 → 4, cache 1 → 2".
func numbersText(v *View, from, to map[string]int) string {
	var parts []string
	for i := range v.Elements {
		name := v.Elements[i].Name
		if n, ok := to[name]; ok {
			parts = append(parts, fmt.Sprintf("%s %d → %d", name, from[name], n))
		}
	}
	if len(parts) == 0 {
		return "instances"
	}
	return strings.Join(parts, ", ")
}

// evidenceText is "; ids uses 95 % of its CPU, is throttled 40 % of the time": why elements
// have their turn.
func evidenceText(v *View, numbers map[string]int) (text string) {
	for i := range v.Elements {
		e := &v.Elements[i]
		if _, ok := numbers[e.Name]; !ok || !e.Evidence.Known {
			continue
		}
		text += fmt.Sprintf("; %s uses %.0f %% of its CPU", e.Name, 100*e.Evidence.CPU)
		if x := e.Evidence.Throttled; x >= 0.01 {
			text += fmt.Sprintf(", is throttled %.0f %% of the time", 100*x)
		}
		if x := e.Evidence.Dropped; x >= 0.01 {
			text += fmt.Sprintf(", loses %.0f %% of its packets", 100*x)
		}
	}
	return text
}

// standing is "3 ids, 2 cache".
func (s *Scaler) standing(v *View) string {
	var parts []string
	for i := range v.Elements {
		parts = append(parts, fmt.Sprintf("%d %s", s.Status.Wanted[v.Elements[i].Name], v.Elements[i].Name))
	}
	return strings.Join(parts, ", ")
}

func percentText(change float64) string {
	p := 100 * change
	switch {
	case p > 999:
		return "more than +999 %"
	case math.Abs(p) < 0.95:
		return fmt.Sprintf("%+.1f %%", p)
	}
	return fmt.Sprintf("%+.0f %%", p)
}

func valueText(x float64) string {
	if math.Abs(x) >= 100 && math.Abs(x) < 1e9 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

func costText(n int) string {
	if n == 1 {
		return "1 unit/h"
	}
	return fmt.Sprintf("%d units/h", n)
}
