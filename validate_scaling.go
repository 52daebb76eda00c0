package onpath

import (
	"math"
	"net/url"
	"strings"
	"time"
)

// Bounds of scaling.
const (
	DefaultImprove  = Percent(0.05)
	DefaultWindow   = Duration(time.Minute)
	DefaultRamp     = 2
	MaxRamp         = 10
	MinWindow       = Duration(5 * time.Second) // and of what is the operator's own:
	MinOwnWindow    = Duration(500 * time.Millisecond)
	MaxWindow       = Duration(time.Hour)
	MaxScalingCost  = 1_000_000
	maxQuery        = 4096
	cooldownWindows = 5
)

// scaling checks what a chain says of its scaling, and fills defaults in.
func (v *validation) scaling(at string, s *Scaling, c *Chain) {
	if s == nil {
		return
	}
	v.scalingMetric(at+".metric", &s.Metric)
	enum(v, at+".objective", &s.Objective, ObjectiveMax, ObjectiveMax, ObjectiveMin)
	enum(v, at+".policy", &s.Policy, ScaleGreedy, ScaleGreedy, ScaleAll, ScaleCPU)
	if t := s.Target; t != nil && (math.IsNaN(*t) || math.Abs(*t) > MaxMetric) {
		v.add(at+".target", "", "%g is out of range", *t)
	}
	byDefault(&s.Improve, DefaultImprove)
	if s.Improve < 0.001 || s.Improve > 1 {
		v.add(at+".improve", "write 0.1% to 100%", "%s is out of range", s.Improve)
	}
	byDefault(&s.Window, DefaultWindow)
	least := MinWindow // nodes are asked eight times in a window
	if t := c.Metadata.Tenant; t == OperatorTenant || t == DefaultTenant {
		least = MinOwnWindow
	}
	quantity(v, at+".window", s.Window, least, MaxWindow)
	byDefault(&s.Cooldown, cooldownWindows*s.Window)
	quantity(v, at+".cooldown", s.Cooldown, 0, day)
	byDefault(&s.Ramp, DefaultRamp)
	v.number(at+".ramp", s.Ramp, 1, MaxRamp)
	v.number(at+".budget", s.Budget, 0, math.MaxInt32)
	v.scalingElements(at, s, c)
}

// MaxMetric is the largest value of a metric, of either sign, that is believed.
const MaxMetric = 1e15

func (v *validation) scalingMetric(at string, m *ScalingMetric) {
	if m.URL == "" && m.Query == "" && m.Source != MetricPulled {
		enum(v, at, &m.Source, MetricPushed, MetricPushed, MetricPackets, MetricBytes, MetricNewFlows, MetricDropped)
		return
	}
	m.Source = MetricPulled
	v.metricSource(at+".url", m.URL)
	if m.Query == "" {
		v.add(at+".query", "write a query whose result is one number", "is missing")
	}
	v.text(at+".query", m.Query, maxQuery)
}

// metricSource checks the address of a Prometheus server.
func (v *validation) metricSource(at, s string) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" || strings.HasSuffix(s, "/") {
		v.add(at, "write http://HOST:9090", "%s is not the address of a Prometheus server", quote(s))
	}
}

func (v *validation) scalingElements(at string, s *Scaling, c *Chain) {
	if len(s.Elements) == 0 {
		v.add(at+".elements", "name elements that may grow: {NAME: {max: 4}}", "is missing")
	}
	least := 0
	for _, name := range sortedKeys(s.Elements) {
		e, field := s.Elements[name], key(at+".elements", name)
		if x := c.ElementNamed(name); x == nil {
			v.add(field, meant(name, c.ElementNames()), "the chain has no element %s", quote(name))
		}
		byDefault(&e.Min, 1)
		byDefault(&e.Cost, 1)
		v.number(field+".min", e.Min, 1, MaxMembers)
		v.number(field+".max", e.Max, e.Min, MaxMembers)
		v.number(field+".cost", e.Cost, 1, MaxScalingCost)
		s.Elements[name] = e
		least += e.Min * e.Cost
	}
	if s.Budget > 0 && least > s.Budget {
		v.add(at+".budget", "raise it, or lower min", "%d do not pay for min of all elements, which costs %d", s.Budget, least)
	}
}

// ElementNamed is the element whose function or deployment Through names so; nil: none.
func (c *Chain) ElementNamed(name string) *Element {
	for i := range c.Spec.Through {
		if e := &c.Spec.Through[i]; e.Name() == name {
			return e
		}
	}
	return nil
}

// ElementNames are the names of the chain's elements, in order.
func (c *Chain) ElementNames() (list []string) {
	for i := range c.Spec.Through {
		list = append(list, c.Spec.Through[i].Name())
	}
	return list
}

// Name is what the element is called in its chain.
func (e *Element) Name() string {
	if e.Function != "" {
		return string(e.Function)
	}
	return string(e.Deployment)
}
