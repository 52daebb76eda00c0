package bench

import "time"

// cost is how long a benchmark takes, as it did on a machine with two cores:
// whatever the number of rounds, and for each.
type cost struct{ fixed, round time.Duration }

// Estimate is about how long a run takes.
func Estimate(o Options) (time.Duration, error) {
	list, err := choose(o.Names)
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, b := range list {
		sum += b.estimate(o)
	}
	return sum, nil
}

func (b Benchmark) estimate(o Options) time.Duration {
	if o.Quick {
		return quickTime
	}
	rounds := b.rounds
	if o.Rounds > 0 {
		rounds = o.Rounds
	}
	return b.cost.fixed + time.Duration(rounds)*b.cost.round
}

// quickTime is about what each benchmark takes in a quick run.
const quickTime = 15 * time.Second

// wholeTime is what the whole suite is to fit into.
const wholeTime = 45 * time.Minute
