package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/pool"
	"github.com/onpath/onpath/plan/calendar"
)

// kept are a node's reservations, in lanes one after the other.
func (s poolSize) kept(node, cloudlet string, rng *rand.Rand, begin time.Time) (out []*onpath.Reservation) {
	each := s.reservations / poolLanes
	for lane := range poolLanes {
		cuts := []int64{0, int64(poolHorizon)}
		for range each - 1 {
			cuts = append(cuts, rng.Int64N(int64(poolHorizon)))
		}
		slices.Sort(cuts)
		for k := range each {
			r := poolRequest(fmt.Sprintf("%s-%d-%d", node, lane, k), rng)
			from, until := begin.Add(time.Duration(cuts[k])), begin.Add(time.Duration(cuts[k+1]))
			r.Spec = onpath.ReservationSpec{Cloudlet: cloudlet, From: from, Until: until, Instances: 1,
				Capacity: onpath.Resources{CPU: poolCores * poolFill / 100 / poolLanes, Memory: 1 << 30}}
			r.Status = onpath.ReservationStatus{Cloudlet: cloudlet, Places: []onpath.ReservedPlace{{Node: node}},
				Slots: []onpath.ReservationSlot{{From: from, Until: until, Capacity: r.Spec.Capacity}}}
			r.Status.Step(onpath.ReservationConfirmed, time.Now().UTC(), "on "+node)
			out = append(out, r)
		}
	}
	return out
}

// poolTenants share the pool.
const poolTenants = 500

func poolTenant(k int) string { return fmt.Sprintf("t%03d", k) }

func poolRequest(name string, rng *rand.Rand) *onpath.Reservation {
	o, _ := onpath.New(onpath.KindReservation)
	r := o.(*onpath.Reservation)
	r.Metadata.Name, r.Metadata.Tenant = name, poolTenant(rng.IntN(poolTenants))
	return r
}

// poolWork asks a pool.
type poolWork struct {
	*Run
	pool  *pool.Pool
	size  poolSize
	begin time.Time
	rng   *rand.Rand
	asked int
}

// request is near a cloudlet, for an hour to three days within the month.
func (w *poolWork) request() *onpath.Reservation {
	w.asked++
	r := poolRequest(fmt.Sprintf("asked-%d", w.asked), w.rng)
	from := w.begin.Add(time.Duration(w.rng.Int64N(int64(poolHorizon))).Truncate(time.Second))
	until := from.Add(time.Hour + time.Duration(w.rng.Int64N(int64(71*time.Hour))).Truncate(time.Second))
	near, _ := onpath.ParsePrefix(fmt.Sprintf("10.%d.7.0/24", w.rng.IntN(w.size.cloudlets)))
	r.Spec = onpath.ReservationSpec{Near: onpath.Prefix{Prefix: near}, From: from, Until: until, Instances: 1 + w.rng.IntN(2),
		Capacity: onpath.Resources{CPU: onpath.CPU(500 + w.rng.IntN(4000)), Memory: 1 << 30}}
	return r
}

// decisions asks for quotes, one after the other.
func (w *poolWork) decisions(ctx context.Context, round int) error {
	n := pick(w.Run, poolRequests, 100)
	took := make([]time.Duration, 0, n)
	declined := 0
	for range n {
		r := w.request()
		start := time.Now()
		_, err := w.pool.Apply(ctx, []*onpath.Reservation{r}, nil, true)
		took = append(took, time.Since(start))
		if onpath.CodeOf(err) == onpath.CodeNoCapacity {
			declined++
		} else if err != nil {
			return err
		}
	}
	w.say("%d of %d requests declined", declined, n)
	w.sample(poolDecision, "onpath", metricP99, unitSeconds, round, p99(took))
	return nil
}

// commits asks at a steady rate whether or not answers come, and for good. Times count from
// when each request was due.
func (w *poolWork) commits(ctx context.Context, round int) error {
	n := pick(w.Run, poolRequests, 50)
	took, errs := make([]time.Duration, n), make([]error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		r := w.request()
		due := start.Add(time.Duration(i) * time.Second / poolRate)
		time.Sleep(time.Until(due))
		wg.Go(func() {
			if _, err := w.pool.Apply(ctx, []*onpath.Reservation{r}, nil, false); onpath.CodeOf(err) != onpath.CodeNoCapacity {
				errs[i] = err
			}
			took[i] = time.Since(due)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	w.sample(poolCommit, "onpath", metricP99, unitSeconds, round, p99(took))
	return nil
}

func p99(list []time.Duration) float64 {
	slices.Sort(list)
	return list[(len(list)*99-1)/100].Seconds()
}

// placing is how long a calendar takes to place an instance on one of 20 nodes with so many
// reservations on each.
func placing(reservations int) float64 {
	c, rng := calendar.New(), rand.New(rand.NewPCG(1, 2))
	const nodes, year = 20, int64(1e7)
	size := onpath.Resources{CPU: 1000, Memory: 1 << 20}
	for i := range nodes {
		c.SetNode(fmt.Sprint(i), "c", onpath.Resources{CPU: 64_000_000, Memory: 1 << 40}, true)
	}
	slot := func(length int64) []calendar.Slot {
		from := time.Unix(rng.Int64N(year), 0)
		return []calendar.Slot{{From: from, Until: from.Add(time.Duration(length) * time.Second), Capacity: size}}
	}
	for range reservations * nodes {
		c.Book(calendar.Booking{Node: fmt.Sprint(rng.IntN(nodes)), Slots: slot(1 + rng.Int64N(86_400))})
	}
	const n = 20_000
	start := time.Now()
	for range n {
		c.Place("c", slot(3600), 1, false)
	}
	return float64(time.Since(start)) / n
}
