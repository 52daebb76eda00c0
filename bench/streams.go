package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// siteMaker has a site's gateway forward, as one contestant does.
type siteMaker struct {
	name string
	wire func(context.Context, *Run, *site) error
}

// streams measures a TCP stream through sites.
func (r *Run) streams(ctx context.Context, kase string, rounds int, makers ...siteMaker) error {
	for first := 0; first < rounds; first += buildRounds {
		if err := r.someStreams(ctx, kase, makers, first, min(rounds, first+buildRounds), rounds); err != nil {
			return err
		}
		slices.Reverse(makers)
	}
	return nil
}

func (r *Run) someStreams(ctx context.Context, kase string, makers []siteMaker, first, end, rounds int) (err error) {
	var list []deployment
	defer func() {
		for _, d := range list {
			err = errors.Join(err, d.Close())
		}
	}()
	for _, m := range makers {
		r.say("%s, %s: start", kase, m.name)
		t, err := r.newSite(m.name)
		if err != nil {
			return err
		}
		list = append(list, deployment{m.name, t})
		if err := m.wire(ctx, r, t); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if err := t.open(ctx); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	for round := first; round < end; round++ {
		r.say("%s, round %d of %d", kase, round+1, rounds)
		if err := r.streamRound(ctx, kase, round, list); err != nil {
			return err
		}
	}
	return nil
}
