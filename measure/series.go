package measure

import (
	"slices"
	"time"
)

// Sample is one question: how long its answer took, or none (lost).
type Sample struct {
	RTT  time.Duration
	Lost bool
}

// Value is what a pair is said to have.
type Value struct {
	RTT  time.Duration // median of the window's answers; 0: no answer came
	Loss float64       // share of the window's questions without an answer, 0 to 1
}

// window is how many questions a value rests on.
const window = 16

// lossStep is the change of loss that is news: one question of the window.
const lossStep = 1.0 / window

// Series gathers the samples of one pair and decides what is news.
type Series struct {
	samples []Sample // the last ones, the newest last
	told    Value
	any     bool
}

// Add takes a sample. It returns the pair's value and whether it is news: the first value,
// or one whose round trip differs from the value told last by more than change (0.1: 10 %),
// or whose loss differs by more than one question of the window.
func (s *Series) Add(x Sample, change float64) (Value, bool) {
	if len(s.samples) == window {
		s.samples = slices.Delete(s.samples, 0, 1)
	}
	s.samples = append(s.samples, x)
	v := s.value()
	if s.any && !differs(s.told, v, change) {
		return v, false
	}
	s.told, s.any = v, true
	return v, true
}

func (s *Series) value() Value {
	answers := make([]time.Duration, 0, window)
	for _, x := range s.samples {
		if !x.Lost {
			answers = append(answers, x.RTT)
		}
	}
	v := Value{Loss: float64(len(s.samples)-len(answers)) / float64(len(s.samples))}
	if len(answers) > 0 {
		slices.Sort(answers)
		v.RTT = answers[len(answers)/2]
	}
	return v
}

func differs(a, b Value, change float64) bool {
	if (a.RTT == 0) != (b.RTT == 0) {
		return true
	}
	rtt := max(a.RTT-b.RTT, b.RTT-a.RTT)
	loss := max(a.Loss-b.Loss, b.Loss-a.Loss)
	return float64(rtt) > change*float64(a.RTT) || loss > lossStep
}
