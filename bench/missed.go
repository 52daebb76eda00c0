package bench

import (
	"context"
	"fmt"

	"github.com/onpath/onpath/bench/profile"
)

// Profile is where the time of a contestant went that missed a target: the CPU
// that forwards, source and sink included.
type Profile struct {
	Benchmark  string `json:"benchmark"`
	Case       string `json:"case"`
	Contestant string `json:"contestant"`
	// Shares are the functions that took most, without those they called.
	Shares []profile.Share `json:"shares"`
}

// Functions of less than the least share, and beyond the most, are left out of a
// profile.
const (
	leastShare = 0.01
	mostShares = 16
)

// profileMissed runs again what missed a target, and notes what the CPU was at.
// load gives what is to be run for a case and contestant, ready to be run, or nil
// where a profile says nothing. A quick run, which evaluates nothing, profiles the
// first that can be.
func (r *Run) profileMissed(ctx context.Context, load func(kase, contestant string) (func() error, error)) error {
	soFar := &Results{Records: r.records()}
	done := map[[2]string]bool{}
	for _, t := range r.targets {
		v := t.evaluate(r.benchmark, soFar)
		if key := [2]string{t.Case, t.Contestant}; !v.Measured || done[key] || v.Reached && !r.Quick {
			continue
		} else {
			done[key] = true
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		run, err := load(t.Case, t.Contestant)
		if err != nil {
			return fmt.Errorf("profile of %s, %s: %w", t.Contestant, t.Case, err)
		}
		if run == nil {
			continue
		}
		r.say("profile of %s, %s", t.Contestant, t.Case)
		if err := r.profile(t.Case, t.Contestant, run); err != nil {
			return fmt.Errorf("profile of %s, %s: %w", t.Contestant, t.Case, err)
		}
		if r.Quick {
			return nil
		}
	}
	return nil
}

// profile samples the CPU that forwards while fn runs.
func (r *Run) profile(kase, contestant string, fn func() error) error {
	s, err := profile.Start(r.cpu)
	if err != nil {
		r.say("no profile: %v", err) // figures do not depend on it
		return nil
	}
	err = fn()
	shares, stopErr := s.Stop()
	if err != nil {
		return err
	}
	if stopErr != nil {
		return stopErr
	}
	p := Profile{Benchmark: r.benchmark, Case: kase, Contestant: contestant}
	for _, x := range shares {
		if x.Share >= leastShare && len(p.Shares) < mostShares {
			p.Shares = append(p.Shares, x)
		}
	}
	r.machine.Profiles = append(r.machine.Profiles, p)
	return nil
}
