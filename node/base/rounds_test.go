package base

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/onpath/onpath"
)

// config is one with instance vports.
func config(ids ...onpath.VportID) *onpath.DatapathConfig {
	c := &onpath.DatapathConfig{Vports: []onpath.Vport{{ID: 99, Kind: onpath.VportRemote}}}
	for _, v := range ids {
		c.Vports = append(c.Vports, onpath.Vport{ID: v, Kind: onpath.VportInstance})
	}
	return c
}

// waits calls fn and reports whether it waits for others; over ends when fn does.
func waits(t *testing.T, fn func(context.Context) error) (waits bool, over <-chan error) {
	t.Helper()
	ch := make(chan error, 1)
	go func() { ch <- fn(t.Context()) }()
	synctest.Wait()
	select {
	case err := <-ch:
		if err != nil {
			t.Fatal(err)
		}
		return false, nil
	default:
		return true, ch
	}
}

// TestRoundsAwait: who waits for a vport goes on when it is in force, or when no plan names
// it; who waits until it is gone goes on after a round without it, and only of a round
// that began later.
func TestRoundsAwait(t *testing.T) { synctest.Test(t, roundsAwait) }

func roundsAwait(t *testing.T) {
	r := NewRounds()
	in := func(ctx context.Context) error { return r.AwaitIn(ctx, []onpath.VportID{16}) }
	out := func(ctx context.Context) error { return r.AwaitOut(ctx, []onpath.VportID{16}) }
	round := func(c *onpath.DatapathConfig, done bool) {
		n, force := r.Begin()
		if done {
			r.Applied(c)
		}
		r.End(n, force, done)
	}
	if wait, _ := waits(t, in); wait {
		t.Error("it waits for a vport that no plan names")
	}
	r.Name(config(16))
	wait, over := waits(t, in)
	if !wait {
		t.Fatal("it does not wait for a vport that the plan names")
	}
	round(config(), false)
	round(config(16), true)
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	if !r.InForce()[16] || r.InForce()[99] {
		t.Errorf("in force are %v", r.InForce())
	}
	n, force := r.Begin() // before it is asked for
	wait, over = waits(t, out)
	r.Applied(config())
	r.End(n, force, true)
	synctest.Wait()
	select {
	case <-over:
		t.Error("a round that had begun before counts")
	default:
	}
	round(config(), true)
	if err := <-over; err != nil || !wait {
		t.Errorf("%v, waited %t", err, wait)
	}
}

// TestRoundsForce: what a failed round was to force, the next one forces.
func TestRoundsForce(t *testing.T) {
	r := NewRounds()
	r.Kick(true)
	n, force := r.Begin()
	if !force {
		t.Error("it is not forced")
	}
	r.End(n, force, false)
	if n, force = r.Begin(); !force {
		t.Error("a failed round forgets the force")
	}
	r.End(n, force, true)
	if _, force = r.Begin(); force {
		t.Error("a round that is done does not")
	}
}
