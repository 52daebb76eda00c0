package scale

import (
	"math"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// View is what a scaler decides from.
type View struct {
	Now time.Time
	// Elements that may grow and shrink, in the order of the chain.
	Elements []Element
	// Stale is why the metric cannot be believed; "" if it can.
	Stale string
	// Awaited: this server has not been running for long, and has heard no value yet. Nothing
	// begins, and what is on trial stays so.
	Awaited bool
	// Held is why nothing may begin now: another chain tries a deployment that both use,
	// or instances are not ready.
	Held string
	// Demand is the chain's traffic in any unit, if it is known: a change of it is a
	// reason to look whether all instances are needed.
	Demand *Series
}

// Element is one element as it stands.
type Element struct {
	Name string
	onpath.ElementScaling
	// Now is the number of instances wanted in each cloudlet, Ready how many take new
	// flows, in the cloudlet that has the fewest.
	Now, Ready int
	// Cloudlets that have so many instances each; other chains may bring a deployment to
	// cloudlets in which this one is not.
	Cloudlets int
	// NoCapacity is why another one cannot be placed.
	NoCapacity string
	Evidence   Evidence
	// Others are the chains that use the deployment, too, and scale.
	Others []Other
}

// Other is another chain that uses an element.
type Other struct {
	Name      string
	Series    *Series
	Objective onpath.Objective
	Improve   float64
}

// Evidence is what an element's instances tell of their load. It orders trials, and lets
// those be left out that cannot help; what is kept, the metric decides.
type Evidence struct {
	Known bool
	// CPU used, as a part of the limit; Throttled: part of the time in which an instance
	// wanted to run and must not; Dropped: part of the packets that did not get through.
	CPU, Throttled, Dropped float64
}

// seriousDrops is the part of the packets from which on drops are a sign of load, and not
// of packets that come in bursts.
const seriousDrops = 0.02

// pressure is how near to its limits an element is: 1 and more is at one.
func (e *Element) pressure() float64 {
	x := e.Evidence
	if !x.Known {
		return 0.7
	}
	p := x.CPU
	if x.Throttled > 0.1 {
		p = max(p, 0.9+x.Throttled)
	}
	if x.Dropped > seriousDrops {
		p = max(p, 1+x.Dropped)
	}
	return p
}

// idle reports whether an element certainly is no bottleneck.
func (e *Element) idle() bool { return e.Evidence.Known && e.pressure() < 0.5 }

// slack reports whether the load would fit into one instance less, with a fifth to spare.
func (e *Element) slack() bool {
	return e.Evidence.Known && e.Now > e.Min && e.pressure()*float64(e.Now) < 0.8*float64(e.Now-1)
}

// step is how many instances to add at once: as many as what is dropped would need, at
// most as many as there are.
func (e *Element) step() int {
	d := min(e.Evidence.Dropped, 0.9)
	if !e.Evidence.Known || d <= seriousDrops {
		return 1
	}
	return min(max(int(math.Ceil(float64(e.Now)*d/(1-d))), 1), e.Now)
}

func (v *View) element(name string) *Element {
	if i := slices.IndexFunc(v.Elements, func(e Element) bool { return e.Name == name }); i >= 0 {
		return &v.Elements[i]
	}
	return nil
}

// cost is what numbers of instances cost in an hour; elements that are not named keep
// theirs.
func (v *View) cost(numbers map[string]int) (sum int) {
	for i := range v.Elements {
		e := &v.Elements[i]
		n, ok := numbers[e.Name]
		if !ok {
			n = e.Now
		}
		sum += n * e.Cost * max(e.Cloudlets, 1)
	}
	return sum
}

// numbers are those of now.
func (v *View) numbers() map[string]int {
	m := map[string]int{}
	for i := range v.Elements {
		m[v.Elements[i].Name] = v.Elements[i].Now
	}
	return m
}
