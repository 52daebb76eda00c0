package demo

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
	"github.com/onpath/onpath/cli/table"
)

// ScaleReport is what the demonstration of scaling found.
type ScaleReport struct {
	Low      float64        `json:"low"` // requests served in a second before the load rose
	Up       ScalePhase     `json:"up"`
	Down     ScalePhase     `json:"down"`
	Fixed    []ScalePhase   `json:"fixed"`
	Best     map[string]int `json:"best"` // the fewest instances that can serve the load, by what one of each serves
	BestHalf map[string]int `json:"bestHalf"`
	Racks    []Split        `json:"racks"`
	Checks   `json:"checks"`
}

// ScalePhase is one load and what served it.
type ScalePhase struct {
	Name      string         `json:"name,omitempty"`
	Load      int            `json:"load"`
	Took      time.Duration  `json:"took,omitempty"`
	Settled   bool           `json:"settled,omitempty"` // else Took is how long it was waited for
	Served    float64        `json:"served"`
	Instances map[string]int `json:"instances"`
	Cost      int            `json:"cost"`
	Decisions []string       `json:"decisions,omitempty"`
}

// perCost is what a unit of cost serves.
func (p ScalePhase) perCost() float64 { return p.Served / float64(max(p.Cost, 1)) }

// Split is how flows were split between two elements.
type Split struct {
	Chain    string         `json:"chain"`
	Flows    int            `json:"flows"`
	Crossing float64        `json:"crossing"` // part of the flows that goes from rack to rack
	Shares   map[string]int `json:"shares"`   // flows of each instance of the second element
	Largest  int            `json:"largest"`
	Smallest int            `json:"smallest"`
}

func (r *ScaleReport) check() {
	check := r.Checks.add
	best, all, none := named(r.Fixed, "best static"), named(r.Fixed, "scale all"), named(r.Fixed, "no scaling")
	check(r.Up.Settled && r.Up.Took <= 45*time.Second, "it settles in 45 s when the load is four-fold", "%.1f s; the paper: 9 minutes", r.Up.Took.Seconds())
	check(r.Down.Settled && r.Down.Took <= 30*time.Second, "it settles in 30 s when the load is halved", "%.1f s", r.Down.Took.Seconds())
	check(near(r.Up.Instances, r.Best), "it is within one instance of the best static numbers", "%s, best %s", numbers(r.Up.Instances), numbers(r.Best))
	check(near(r.Down.Instances, r.BestHalf), "and when the load is halved", "%s, best %s", numbers(r.Down.Instances), numbers(r.BestHalf))
	check(r.Up.Served >= 0.95*best.Served, "it serves 0.95 of what the best static numbers serve", "%.0f of %.0f requests/s", r.Up.Served, best.Served)
	check(r.Up.perCost() > all.perCost(), "and more for a unit of cost than scaling all", "%.1f, scale all %.1f", r.Up.perCost(), all.perCost())
	check(r.Up.Served > 1.5*none.Served, "and more than without scaling", "%.0f, without %.0f", r.Up.Served, none.Served)
	if len(r.Racks) == 2 {
		uniform, network := r.Racks[0], r.Racks[1]
		check(network.Flows > 1000 && uniform.Flows > 1000 && network.Crossing <= 0.36*uniform.Crossing, "flows stay in their rack",
			"%.1f %% go to the other, uniform %.1f %%: a ratio of %.2f (paper 1/3)", 100*network.Crossing, 100*uniform.Crossing, network.Crossing/uniform.Crossing)
		share := float64(network.Flows) / 4
		check(float64(network.Smallest) >= 0.9*share && float64(network.Largest) <= 1.1*share, "and every instance has its share",
			"%d to %d flows of %.0f", network.Smallest, network.Largest, share)
	}
}

// near reports whether no number differs by more than one.
func near(a, b map[string]int) bool {
	for k, n := range b {
		if d := a[k] - n; d < -1 || d > 1 {
			return false
		}
	}
	return true
}

func numbers(m map[string]int) string {
	return fmt.Sprintf("%d inspect, %d limit", m["inspect"], m["limit"])
}

// Print implements Figures.
func (r *ScaleReport) Print(w io.Writer) {
	fmt.Fprintln(w)
	t := table.New("CASE", "LOAD", "SERVED", "INSTANCES", "COST/H", "SERVED PER UNIT", "SETTLED")
	up, down := r.Up, r.Down
	up.Name, down.Name = "scaling, load × 4", "scaling, load halved"
	for _, p := range append([]ScalePhase{up}, append(r.Fixed, down)...) {
		took := "-"
		if p.Took > 0 {
			took = fmt.Sprintf("%.1f s", p.Took.Seconds())
		}
		t.Row(p.Name, fmt.Sprintf("%d/s", p.Load), fmt.Sprintf("%.0f/s", p.Served), numbers(p.Instances), fmt.Sprint(p.Cost), fmt.Sprintf("%.1f", p.perCost()), took)
	}
	_ = t.Write(w)
	fmt.Fprintln(w)
	t = table.New("FIGURE 7", "FLOWS", "FROM RACK TO RACK", "FLOWS OF AN INSTANCE")
	for _, s := range r.Racks {
		t.Row(s.Chain, fmt.Sprint(s.Flows), fmt.Sprintf("%.1f %%", 100*s.Crossing), fmt.Sprintf("%d to %d", s.Smallest, s.Largest))
	}
	_ = t.Write(w)
	r.Checks.print(w)
}

// flows reads a node's flow entries.
func (d *scaleRun) flows(ctx context.Context, node string, add func(onpath.FlowEntry)) error {
	return d.client.Flows(ctx, client.FlowsOf{Node: node}, func(f wire.Flow) bool {
		add(f.Entry)
		return true
	})
}
