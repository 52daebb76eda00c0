package onpath

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Scaling has the numbers of a chain's instances follow what the application says of
// itself: one instance of one element is tried at a time, and stays only if it helps
// (Stratos §4.1).
type Scaling struct {
	// Metric is where the application's value comes from; default pushed.
	Metric ScalingMetric `json:"metric,omitzero"`
	// Objective: max (default), the value is the better the larger it is; min: the smaller.
	Objective Objective `json:"objective,omitempty"`
	// Target is a value that is good enough: nothing is added beyond it.
	Target *float64 `json:"target,omitempty"`
	// Improve is by how much the value must be better for an instance to stay, and may be
	// worse for one to go; default 5%.
	Improve Percent `json:"improve,omitempty"`
	// Window is how long values are compared; a trial takes a quarter of it where the
	// difference is plain, and eight where noise hides it. Default 60s.
	Window Duration `json:"window,omitempty"`
	// Budget is what all instances of Elements may cost in an hour; 0: no limit.
	Budget int `json:"budget,omitempty"`
	// Cooldown is how long nothing is tried after trials have ended; default 5 windows.
	Cooldown Duration `json:"cooldown,omitempty"`
	// Ramp is up to how many times its share of new flows a new instance gets, until it has
	// its part of the traffic (Stratos §4.2); 1: no more than its share. Default 2.
	Ramp int `json:"ramp,omitempty"`
	// Policy: greedy (default), as the paper has it; all: every element grows and shrinks
	// together; cpu: by processor time alone, without trials. The last two are there to
	// be compared with.
	Policy ScalingPolicy `json:"policy,omitempty"`
	// Elements may grow and shrink, by the names of their functions or deployments as
	// Through has them.
	Elements map[string]ElementScaling `json:"elements"`
}

// ElementScaling bounds the instances of an element, in each cloudlet.
type ElementScaling struct {
	Min int `json:"min,omitempty"` // default 1
	Max int `json:"max"`
	// Cost of an instance in an hour, in any unit; default 1.
	Cost int `json:"cost,omitempty"`
}

// Objective says which values are better.
type Objective string

// The objectives.
const (
	ObjectiveMax Objective = "max"
	ObjectiveMin Objective = "min"
)

// ScalingPolicy is a way to choose what grows.
type ScalingPolicy string

// The policies.
const (
	ScaleGreedy ScalingPolicy = "greedy"
	ScaleAll    ScalingPolicy = "all"
	ScaleCPU    ScalingPolicy = "cpu"
)

// ScalingMetric is a word, or a query to a Prometheus server.
type ScalingMetric struct {
	// Source: pushed, by onpath metric or the API; or counted: packets or bytes that enter
	// the chain, or flows that begin in it, in a second, or packets dropped by its elements.
	Source MetricSource `json:"-"`
	// URL of a Prometheus server, which the operator permits in Tenant.spec.metricSources,
	// and the Query, whose result is one number.
	URL   string `json:"url,omitempty"`
	Query string `json:"query,omitempty"`
}

// MetricSource is where a value comes from.
type MetricSource string

// The sources.
const (
	MetricPushed   MetricSource = "pushed"
	MetricPackets  MetricSource = "packets"
	MetricBytes    MetricSource = "bytes"
	MetricNewFlows MetricSource = "newFlows"
	MetricDropped  MetricSource = "dropped"
	MetricPulled   MetricSource = "pulled" // by URL and Query
)

type metricFields ScalingMetric

// MarshalJSON writes the word or the query.
func (m ScalingMetric) MarshalJSON() ([]byte, error) {
	if m.URL == "" && m.Query == "" {
		return json.Marshal(string(m.Source))
	}
	return json.Marshal(metricFields(m))
}

// UnmarshalJSON reads the word or the query.
func (m *ScalingMetric) UnmarshalJSON(b []byte) error {
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] == '"' {
		*m = ScalingMetric{}
		return json.Unmarshal(b, (*string)(&m.Source))
	}
	var f metricFields
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*m = ScalingMetric(f)
	m.Source = MetricPulled
	return nil
}

// Percent is a part of a whole as a number, written "5%".
type Percent float64

// MarshalText writes "5%".
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String is "5%".
func (p Percent) String() string { return strconv.FormatFloat(float64(p)*100, 'g', 6, 64) + "%" }

// UnmarshalText reads "5%" or "2.5%".
func (p *Percent) UnmarshalText(b []byte) error {
	n, ok := strings.CutSuffix(string(b), "%")
	v, err := parseNumber(n, 1e6)
	if !ok || err != nil {
		return fmt.Errorf("%q is not a part in percent (write 5%%)", b)
	}
	*p = Percent(float64(v) / 1e8)
	return nil
}

// ScalingStatus is how far a chain's scaling is. A server that takes over goes on from it.
type ScalingStatus struct {
	Phase ScalingPhase `json:"phase,omitempty"`
	// Message says why, where Phase is stopped or held.
	Message string `json:"message,omitempty"`
	// Doubt is why a value that is the same all the time is not believed. No instance is taken
	// away until the value changes.
	Doubt string `json:"doubt,omitempty"`
	// Wanted are the numbers of instances, by element; they hold against the numbers in
	// the chain, but those of deployments that are objects stand in their own status.
	Wanted map[string]int `json:"wanted,omitempty"`
	// Settled is when the numbers became what they are.
	Settled time.Time `json:"settled,omitzero"`
	// Resting: nothing is tried before.
	Resting time.Time `json:"resting,omitzero"`
	// Rests counts sessions since the value changed last; each rests twice as long as the
	// one before, up to 32 cool-downs.
	Rests int `json:"rests,omitempty"`
	// Reference is how the value was when trials had ended; a significant change from it
	// begins new ones.
	Reference MetricStats `json:"reference,omitzero"`
	// Demand is how the chain's traffic was then, likewise.
	Demand MetricStats `json:"demand,omitzero"`
	// Futile: what could be added has been, in vain, since the value changed last.
	Futile bool `json:"futile,omitempty"`
	// Needed: what is there was needed when less was tried last, and nothing has changed.
	Needed  bool            `json:"needed,omitempty"`
	Session *ScalingSession `json:"session,omitempty"`
	Trial   *ScalingTrial   `json:"trial,omitempty"`
	// Decisions are the last decisions, oldest first, at most MaxScalingDecisions.
	Decisions []ScalingDecision `json:"decisions,omitempty"`
}

// MaxScalingDecisions is how many decisions a status keeps.
const MaxScalingDecisions = 100

// ScalingPhase is what a scaler does.
type ScalingPhase string

// The phases.
const (
	ScalingWatching ScalingPhase = "watching" // nothing to do
	ScalingTrying   ScalingPhase = "trying"   // a trial, or between two
	ScalingHeld     ScalingPhase = "held"     // something must end first
	ScalingStopped  ScalingPhase = "stopped"  // the metric says nothing
)

// The reasons why a chain's condition Scaling is false.
const (
	ReasonNoMetric   = "NoMetric"   // no value comes that can be believed
	ReasonSameMetric = "SameMetric" // the value is the same all the time
)

// ScalingSession is a series of trials.
type ScalingSession struct {
	Down  bool      `json:"down,omitempty"`
	Began time.Time `json:"began"`
	Pass  int       `json:"pass"`
	// Sudden: the value or the traffic had changed, so decisions are taken as soon as a
	// difference is plain. Else nothing is urgent, and each takes at least a window, which
	// no burst fills.
	Sudden bool `json:"sudden,omitempty"`
	// Next are the elements that this pass has still to try.
	Next []string `json:"next,omitempty"`
	// Before is how the values were before a trial in vain, measured from BeforeFrom on, of
	// each chain that uses the elements, by name.
	Before     map[string]MetricStats `json:"before,omitempty"`
	BeforeFrom time.Time              `json:"beforeFrom,omitzero"`
	// Any counts what was kept; Vain are elements that were tried in vain since, and All
	// says so of all elements together.
	Any  int      `json:"any,omitempty"`
	Vain []string `json:"vain,omitempty"`
	All  bool     `json:"all,omitempty"`
	// Lost is what the value has lost by all that was taken away, as a part of it: -0.05 is
	// 5 %.
	Lost float64 `json:"lost,omitempty"`
	// Trim: more was added than one instance at a time, so some may go again.
	Trim     bool `json:"trim,omitempty"`
	Trimming bool `json:"trimming,omitempty"`
}

// ScalingTrial is a change of numbers on trial.
type ScalingTrial struct {
	From  map[string]int `json:"from"`
	To    map[string]int `json:"to"`
	Began time.Time      `json:"began"`
	// Ready is when the instances were what the trial wants; from a moment later on
	// values count.
	Ready time.Time `json:"ready,omitzero"`
	// Before is the value before, of each chain that uses the elements, by name.
	Before map[string]MetricStats `json:"before"`
	Look   int                    `json:"look,omitempty"` // how often values have been compared
}

// MetricStats are some values of a metric.
type MetricStats struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean"`
	Var  float64 `json:"var"`           // of the values
	Rho  float64 `json:"rho,omitempty"` // correlation of neighbours, -0.6 to 0.95
}

// ScalingDecision is the end of a trial, or a change without one.
type ScalingDecision struct {
	Time time.Time      `json:"time"`
	Took Duration       `json:"took,omitempty"`
	From map[string]int `json:"from,omitempty"`
	To   map[string]int `json:"to,omitempty"`
	// Kept: To holds; else it is From again.
	Kept bool `json:"kept"`
	// Before and After are the values; Change is how much better it was, as a part of
	// Before: 0.05 is 5 % better.
	Before float64 `json:"before,omitempty"`
	After  float64 `json:"after,omitempty"`
	Change float64 `json:"change,omitempty"`
	// Cost of an hour after the decision.
	Cost int `json:"cost"`
	// Text tells it in a sentence.
	Text string `json:"text"`
}
