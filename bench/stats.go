package bench

import (
	"math"
	"slices"
	"sort"
)

// quantile of values, interpolated between neighbours.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Clone(values)
	slices.Sort(v)
	at := q * float64(len(v)-1)
	i := int(at)
	if i+1 >= len(v) {
		return v[len(v)-1]
	}
	return v[i] + (at-float64(i))*(v[i+1]-v[i])
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// samples are the values of each round.
type samples map[sampleKey]map[int]float64

type sampleKey struct{ kase, contestant, metric, unit string }

// collection keeps samples and the order in which keys appeared.
type collection struct {
	benchmark string
	values    samples
	order     []sampleKey
}

func (c *collection) add(k sampleKey, round int, v float64) {
	if c.values == nil {
		c.values = samples{}
	}
	if c.values[k] == nil {
		c.values[k] = map[int]float64{}
		c.order = append(c.order, k)
	}
	c.values[k][round] = v
}

// records condenses the samples, grouped by case and metric, in the order in
// which cases and contestants first appeared.
func (c *collection) records() []Record {
	list := slices.Clone(c.order)
	rank := func(pick func(sampleKey) string) map[string]int {
		m := map[string]int{}
		for _, k := range c.order {
			if _, ok := m[pick(k)]; !ok {
				m[pick(k)] = len(m)
			}
		}
		return m
	}
	cases := rank(func(k sampleKey) string { return k.kase })
	metrics := rank(func(k sampleKey) string { return k.metric })
	sort.SliceStable(list, func(i, j int) bool {
		a, b := list[i], list[j]
		if a.kase != b.kase {
			return cases[a.kase] < cases[b.kase]
		}
		return metrics[a.metric] < metrics[b.metric]
	})
	out := make([]Record, 0, len(list))
	for _, k := range list {
		out = append(out, c.record(k))
	}
	return out
}

func (c *collection) record(k sampleKey) Record {
	var all []float64
	for _, v := range c.values[k] {
		all = append(all, v)
	}
	r := Record{Benchmark: c.benchmark, Case: k.kase, Contestant: k.contestant, Metric: k.metric, Unit: k.unit,
		Value: median(all), Low: quantile(all, 0.25), High: quantile(all, 0.75)}
	for other := range c.values {
		if other.kase != k.kase || other.metric != k.metric || other.contestant == k.contestant {
			continue
		}
		if ratio, ok := c.ratio(k, other); ok {
			if r.Ratio == nil {
				r.Ratio = map[string]float64{}
			}
			r.Ratio[other.contestant] = ratio
		}
	}
	return r
}

// ratio pairs two contestants round by round.
func (c *collection) ratio(k, other sampleKey) (float64, bool) {
	all := c.ratios(k, other)
	return median(all), len(all) > 0
}

func (c *collection) ratios(k, other sampleKey) (all []float64) {
	for round, v := range c.values[k] {
		if o, ok := c.values[other][round]; ok && o != 0 {
			all = append(all, v/o)
		}
	}
	return all
}
