package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench/ruleset"
)

// The metrics of rules.
const (
	metricFirstMedian = "first packet, p50"
	metricFirstTail   = "first packet, p99"
	metricFirstOfTen  = "first packet, p99 over 10 rules"
	metricRuleMedian  = "rule found, p50"
	metricRuleTail    = "rule found, p99"
	metricRuleOfTen   = "rule found, p99 over 10 rules"
	metricChange      = "change of the table"
)

// rulesTail is how much more the slowest hundredth may cost.
const rulesTail = 3

var rulesSizes = []size{{10, "10 rules"}, {100, "10^2 rules"}, {1_000, "10^3 rules"}, {10_000, "10^4 rules"}, {100_000, "10^5 rules"}}

func rulesBenchmark() Benchmark {
	b := Benchmark{
		Name: "rules", rounds: 2, cost: cost{35 * time.Second, 35 * time.Second},
		Question: "what does the first packet of a flow cost, with more and more rules on a vport?",
		run:      runRules,
	}
	for _, f := range ruleset.Families {
		for _, m := range []struct{ metric, text string }{{metricFirstOfTen, "p99"}, {metricRuleOfTen, "p99 of the decision alone"}} {
			b.Targets = append(b.Targets, Target{
				Text: fmt.Sprintf("%s: %s at 10⁵ rules ≤ %d × that at 10", f, m.text, rulesTail),
				Case: rulesCase(f, rulesSizes[len(rulesSizes)-1].name), Contestant: "onpath-tc", Metric: m.metric, Max: rulesTail,
			})
		}
	}
	return b
}

func rulesCase(f ruleset.Family, size string) string { return fmt.Sprintf("%s, %s", f, size) }

// rulesFlows has room for all flows of a run: an LRU that is full makes room at
// the expense of first packets.
const rulesFlows = 4 << 20

func runRules(ctx context.Context, r *Run) (err error) {
	lines, err := r.routers(ctx, []router{onpathToSink("onpath-tc", rulesFlows, onTC)})
	defer func() { err = errors.Join(err, closeAll(lines)) }()
	if err != nil {
		return err
	}
	sizes := rulesSizes
	if r.Quick {
		sizes = sizes[:3]
	}
	for _, c := range lines {
		for _, f := range ruleset.Families {
			list, err := ruleset.Make(f, sizes[len(sizes)-1].n, 1, false)
			if err != nil {
				return err
			}
			if err := r.rulesOf(ctx, c, f, list, sizes); err != nil {
				return fmt.Errorf("%s, %s: %w", c.name, f, err)
			}
		}
	}
	return nil
}

// size is a number of rules.
type size struct {
	n    int
	name string
}

// rulesOf measures one family with its sizes, forth and back.
func (r *Run) rulesOf(ctx context.Context, c built, f ruleset.Family, list []onpath.Match, sizes []size) error {
	few, err := rulesPlan(list[:1])
	if err != nil {
		return err
	}
	plans := map[int]*onpath.NodePlan{}
	for _, s := range sizes {
		r.say("plan for %s with %s", f, s.name)
		if plans[s.n], err = rulesPlan(evenly(list, s.n)); err != nil {
			return err
		}
	}
	err = abba(ctx, r.Rounds(), sizes, func(round int, s size) error {
		r.say("%s with %s, round %d of %d, %s", f, s.name, round+1, r.Rounds(), c.name)
		some, kase := evenly(list, s.n), rulesCase(f, s.name)
		if err := c.datapath.Apply(ctx, effective(few, true)); err != nil { // or a round that begins where one ended changes nothing
			return err
		}
		began := time.Now()
		if err := c.datapath.Apply(ctx, effective(plans[s.n], true)); err != nil {
			return err
		}
		r.sample(kase, c.name, metricChange, "ms", round, float64(time.Since(began))/1e6)
		seed := uint64(round*1000_000 + s.n)
		if err := r.firstPackets(c, some, seed, kase, round, 1, metricFirstMedian, metricFirstTail); err != nil {
			return err
		}
		// While no instance takes packets, one is dropped once its rule is found: nothing
		// is learnt, which else makes the tail.
		if err := c.datapath.Apply(ctx, effective(plans[s.n], false)); err != nil {
			return err
		}
		return r.firstPackets(c, some, seed+1, kase, round, rulePasses, metricRuleMedian, metricRuleTail)
	})
	for _, m := range [][2]string{{metricFirstTail, metricFirstOfTen}, {metricRuleTail, metricRuleOfTen}} {
		for _, s := range sizes[1:] {
			ten := r.values[sampleKey{rulesCase(f, sizes[0].name), c.name, m[0], "ns"}]
			for round, v := range r.values[sampleKey{rulesCase(f, s.name), c.name, m[0], "ns"}] {
				if ten[round] > 0 {
					r.sample(rulesCase(f, s.name), c.name, m[1], "ratio", round, v/ten[round])
				}
			}
		}
	}
	return err
}

// evenly takes n matches out of a list, in order.
func evenly(list []onpath.Match, n int) []onpath.Match {
	out := make([]onpath.Match, n)
	for i := range out {
		out[i] = list[i*len(list)/n]
	}
	return out
}

// rulesYAML are chains through one instance that select what matches do, in their order.
func rulesYAML(list []onpath.Match) (yaml []string, err error) {
	yaml = []string{gatewayNode(onTC) + hopFunction + object(onpath.KindDeployment, "d0", "{function: hop}")}
	for part := range slices.Chunk(list, 1000) { // of which a chain may have some more
		selectors := make([]onpath.Selector, len(part))
		for i, m := range part {
			selectors[i] = selectorOf(m)
		}
		text, err := json.Marshal(selectors) // which YAML reads
		if err != nil {
			return nil, fmt.Errorf("write rules as YAML: %w", err)
		}
		n := len(yaml)
		yaml = append(yaml, object(onpath.KindChain, fmt.Sprintf("c%d", n), fmt.Sprintf(
			"{priority: %d, direction: forward, from: any, to: any, select: %s, through: [{deployment: d0}]}", -n, text)))
	}
	return yaml, nil
}

func selectorOf(m onpath.Match) onpath.Selector {
	s := onpath.Selector{SourcePorts: m.SrcPorts, DestinationPorts: m.DstPorts}
	for _, p := range m.Protocol {
		s.Protocol = onpath.Protocol(strconv.Itoa(int(p)))
	}
	for _, p := range m.Src {
		s.Sources = append(s.Sources, onpath.Prefix{Prefix: p})
	}
	for _, p := range m.Dst {
		s.Destinations = append(s.Destinations, onpath.Prefix{Prefix: p})
	}
	return s
}

// rulesPlan is the router's plan with so many of the rules.
func rulesPlan(list []onpath.Match) (*onpath.NodePlan, error) {
	yaml, err := rulesYAML(list)
	if err != nil {
		return nil, err
	}
	f, err := planned(yaml...)
	if err != nil {
		return nil, err
	}
	return f.Plan(gatewayName), nil
}

// rulePasses is how often each packet asks for its rule. The median of them
// counts: an interrupt hits any packet, a long search the same one each time, and
// the packets between leave nothing of it in the caches.
const rulePasses = 3

// firstPackets runs the first packets of flows that lie in the rules, of each
// rule about as often, and notes median and tail of their times.
func (r *Run) firstPackets(c built, list []onpath.Match, seed uint64, kase string, round, passes int, median, tail string) error {
	trace := slices.DeleteFunc(ruleset.Trace(list, pick(r, 40_000, 2_000), seed), func(t onpath.Tuple) bool { return !steerable(t) })
	took := make([][]float64, len(trace))
	err := onCPU(c.line.router, r.cpu, func() error {
		m, err := newMeter(devIn)
		if err != nil {
			return err
		}
		defer m.prog.Close()
		for range passes {
			for i, t := range trace {
				_, d, err := m.run(firstFrame(macIn, t))
				if err != nil {
					return err
				}
				took[i] = append(took[i], float64(d))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	each := make([]float64, len(took))
	for i := range took {
		each[i] = quantile(took[i], 0.5)
	}
	r.sample(kase, c.name, median, "ns", round, quantile(each, 0.5))
	r.sample(kase, c.name, tail, "ns", round, quantile(each, 0.99))
	return nil
}
