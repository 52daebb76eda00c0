package pool

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
)

// TestRandomSequences: whatever is asked for, changed and cancelled, whichever nodes die and
// cloudlets are cut off, and however clocks are set or leap, no node has promised more than it
// has at any instant, no accepted reservation is gone or ended by a cut, a leap changes nothing,
// the ledger balances, what is paid is what the calendar has, quotas are kept, tenants come and
// go, and the calendar is what adding the reservations up gives. ONPATH_SEED repeats one sequence, ONPATH_SOAK has 10,000 run.
func TestRandomSequences(t *testing.T) {
	first, n := rand.Uint64(), uint64(150)
	if os.Getenv("ONPATH_SOAK") != "" {
		n = 10_000
	}
	if s := os.Getenv("ONPATH_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, n = v, 1
	}
	t.Logf("seeds from %d on, %d of them", first, n)
	for k := range n {
		s := &sequence{fixture: setUp(t), r: rand.New(rand.NewPCG(first+k, 0)), accepted: map[string]bool{}, failed: map[string]bool{}}
		s.boot = func() time.Duration { return s.now.Sub(start) - s.leapt + 1000*time.Hour }
		s.restart()
		s.run()
		if t.Failed() {
			t.Fatalf("seed %d: ONPATH_SEED=%d repeats it:\n%s", first+k, first+k, s.past)
		}
	}
}

// sequence is what happens to one pool.
type sequence struct {
	*fixture
	r        *rand.Rand
	accepted map[string]bool // by name; false: given up, or its node died
	failed   map[string]bool // by name
	leapt    time.Duration   // of the clock, against the time since the machine started
	latest   time.Time
	past     string
}

func (s *sequence) say(format string, args ...any) {
	s.past += fmt.Sprintf("%s %s\n", s.now.Format("15:04:05"), fmt.Sprintf(format, args...))
}

func (s *sequence) run() {
	s.prices(onpath.PriceListSpec{Hour: onpath.UnitPrices{CPU: 1_234_567, Network: 333}, Tiers: []onpath.PriceTier{{Above: 40, Percent: 150}}})
	s.credit(onpath.Money(20_000_000 + s.r.Int64N(2_000_000_000)))
	s.owner["acme"] = Bounds{UID: "acme 0"}
	if s.r.IntN(2) == 0 {
		s.owner[onpath.DefaultTenant] = Bounds{Most: cores(float64(2 + s.r.IntN(8)))}
	}
	for range 10 + s.r.IntN(20) {
		s.latest = latest(s.latest, s.now)
		s.step()
		s.check()
		s.failedRightly()
		if s.t.Failed() {
			return
		}
	}
	s.Pool = s.restart()
	s.check()
	s.ledger()
}

func (s *sequence) step() {
	switch x := s.r.IntN(26); {
	case x < 9:
		s.ask(s.random(fmt.Sprintf("r%d", s.r.IntN(12))))
	case x < 11:
		s.cancelOne()
	case x < 15:
		d := time.Duration(s.r.IntN(7200)) * time.Second
		s.say("%s pass", d)
		s.behind = s.now.Before(s.latest)
		s.pass(d)
		s.behind = s.now.Before(s.latest)
	case x < 16:
		s.leap()
	case x < 18:
		s.die(s.nodes[[]string{"fra-1", "fra-2", "par-1", "lon-1"}[s.r.IntN(4)]])
	case x < 20:
		s.cut()
	case x < 22:
		s.another()
	case x < 23:
		s.removeTenant()
	case x < 24:
		s.say("the server restarts")
		s.Pool = s.restart()
	default:
		s.moveOne()
	}
}

// random is a request in slots.
func (s *sequence) random(name string) *onpath.Reservation {
	r := request(name, 0, 0, onpath.Resources{})
	r.Spec.Cloudlet = []string{"", "fra", "fra", "par"}[s.r.IntN(4)]
	r.Spec.From = s.now.Add(time.Duration(s.r.IntN(4*3600)) * time.Second)
	if old := s.queue.state.rows.entries[onpath.KeyOf(r)]; old != nil && s.r.IntN(4) > 0 {
		r.Spec.From = old.obj.Spec.From
		r.Spec.Cloudlet = old.obj.Status.Cloudlet
	}
	if s.r.IntN(5) == 0 {
		r.Spec.From = time.Time{}
	}
	if r.Spec.Instances = 1; s.r.IntN(4) == 0 {
		r.Spec.Instances = 1 + s.r.IntN(3)
	}
	size := func() onpath.Resources {
		return onpath.Resources{CPU: onpath.CPU(1 + s.r.IntN(3500)), Network: onpath.Rate(s.r.IntN(3)) * 1e9}
	}
	at := latest(r.Spec.From, s.now)
	next := func() time.Time { at = at.Add(time.Duration(1+s.r.IntN(2*3600)) * time.Second); return at }
	if s.r.IntN(3) == 0 {
		for range 1 + s.r.IntN(4) {
			r.Spec.Slots = append(r.Spec.Slots, onpath.ReservationSlot{Until: next(), Capacity: size()})
		}
		if s.r.IntN(2) == 0 { // open-ended
			r.Spec.Slots[len(r.Spec.Slots)-1].Until = time.Time{}
		}
		return r
	}
	if r.Spec.Capacity = size(); s.r.IntN(6) > 0 {
		r.Spec.Until = next()
	}
	return r
}

func (s *sequence) ask(r *onpath.Reservation) {
	q, err := s.apply(r)
	s.say("ask for %s from %s, cpu %d, %d slots, %d instances: %s %v", r.Metadata.Name, r.Spec.From.Format("15:04:05"),
		r.Spec.Capacity.CPU, len(r.Spec.Slots), r.Spec.Instances, q.State, err)
	if err == nil {
		s.accepted[r.Metadata.Name] = true
	}
}

func (s *sequence) one() (k onpath.Key, ok bool) {
	keys := slices.DeleteFunc(sortedKeysOf(s.queue.state.rows.entries), func(k onpath.Key) bool { return k.Tenant != onpath.DefaultTenant })
	if len(keys) == 0 {
		return k, false
	}
	return keys[s.r.IntN(len(keys))], true
}

func (s *sequence) cancelOne() {
	k, ok := s.one()
	if !ok {
		return
	}
	live := s.queue.state.rows.entries[k].obj.Status.State.Live()
	_, err := s.Apply(s.t.Context(), nil, []onpath.Key{k}, false)
	s.say("cancel %s: %v", k.Name, err)
	if err == nil {
		s.accepted[k.Name] = false
		if !live {
			delete(s.accepted, k.Name)
		}
	}
}

func (s *sequence) moveOne() {
	if k, ok := s.one(); ok {
		x := s.queue.state.rows.entries[k].obj.Status.Places
		if len(x) > 0 {
			_, err := s.Move(s.t.Context(), k, x[0].Node, "")
			s.say("move %s from %s: %v", k.Name, x[0].Node, err)
		}
	}
}

// die has a node die, or come back, or be drained.
func (s *sequence) die(n Node) {
	if s.r.IntN(4) == 0 {
		n.Drain = !n.Drain
		n.Usable = !n.Drain && !n.Gone
		s.say("node %s is drained: %t", n.Name, n.Drain)
	} else if n.Gone {
		n.Usable, n.Gone, n.Dead, n.Alive, n.Since = !n.Drain, false, false, false, time.Time{}
		s.say("node %s is back", n.Name)
	} else {
		n.Usable, n.Gone, n.Since = false, true, s.now.Add(-30*time.Second)
		says := [][2]bool{{true, false}, {false, true}, {false, false}}[s.r.IntN(3)]
		n.Dead, n.Alive = says[0], says[1]
		s.say("node %s is silent, dead %t, alive %t", n.Name, n.Dead, n.Alive)
	}
	s.nodes[n.Name] = n
	s.observe()
	s.Tick(s.t.Context())
}

// another has another tenant pay something in and reserve.
func (s *sequence) another() {
	_, err := s.Enter(s.t.Context(), "acme", onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: onpath.Money(1 + s.r.Int64N(50_000_000)),
		Reference: fmt.Sprint("transfer ", s.r.Uint64())})
	r := s.random(fmt.Sprintf("a%d", s.r.IntN(5)))
	r.Metadata.Tenant = "acme"
	q, askErr := s.apply(r)
	s.say("acme pays in: %v, and asks for %s: %s %v", err, r.Metadata.Name, q.State, askErr)
}

// removeTenant cancels all that the other tenant has, pays it out and removes it. The next one of
// that name has nothing of it.
func (s *sequence) removeTenant() {
	var live []onpath.Key
	for _, k := range sortedKeysOf(s.queue.state.rows.entries) {
		if k.Tenant == "acme" && s.queue.state.rows.entries[k].obj.Status.State.Live() {
			live = append(live, k)
		}
	}
	if len(live) > 0 && s.remove("acme") == nil {
		s.t.Errorf("a tenant is removed that has %v", live)
	}
	_, err := s.Apply(s.t.Context(), nil, live, false)
	a, accountErr := s.Account(s.t.Context(), "acme")
	if err == nil && accountErr == nil && a.Balance > 0 {
		_, err = s.Enter(s.t.Context(), "acme", onpath.MoneyEntry{Kind: onpath.PostingPayout, Amount: a.Balance, Reference: fmt.Sprint("back ", s.r.Uint64())})
	}
	if err == nil {
		err = s.remove("acme")
	}
	s.say("acme is removed: %v", err)
	if err != nil {
		s.t.Errorf("a tenant that has nothing is not removed: %v", err)
		return
	}
	s.owner["acme"] = Bounds{UID: fmt.Sprint("acme ", s.r.Uint64())}
	if a, err := s.Account(s.t.Context(), "acme"); err != nil || a.Balance != 0 || a.Postings != 0 {
		s.t.Errorf("the next tenant of that name has %+v %v", a, err)
	}
}

// cut has a whole cloudlet, or all of them, not be heard of, or be heard of again.
func (s *sequence) cut() {
	cloudlet := []string{"fra", "fra", "par", ""}[s.r.IntN(4)]
	var names []string
	silent := false
	for _, name := range sortedKeys(s.nodes) {
		if n := s.nodes[name]; cloudlet == "" || n.Cloudlet == cloudlet {
			names = append(names, name)
			silent = silent || n.Gone
		}
	}
	if silent {
		s.say("cloudlet %q is back", cloudlet)
		s.hear(names...)
		return
	}
	says := []string{"", "dead", "alive"}[s.r.IntN(3)]
	s.say("cloudlet %q is cut off, peers say %q", cloudlet, says)
	s.silence(says, names...)
	s.observe()
	s.Tick(s.t.Context())
}

// leap sets the clock: by up to a minute, which is followed, or by more, which holds all until
// it is set right, or the server restarts.
func (s *sequence) leap() {
	set := func(d time.Duration) {
		s.now, s.leapt = s.now.Add(d), s.leapt+d
		s.behind = s.now.Before(s.latest)
		s.Tick(s.t.Context())
	}
	if s.r.IntN(3) == 0 {
		d := time.Duration(s.r.IntN(121)-60) * time.Second
		s.say("the clock is set by %s", d)
		set(d)
		return
	}
	d := 61*time.Second + time.Duration(s.r.Int64N(int64(100*time.Hour)))
	if s.r.IntN(2) == 0 {
		d = -61*time.Second - time.Duration(s.r.Int64N(int64(10*time.Minute)))
	}
	before := s.state()
	s.say("the clock leaps by %s", d)
	set(d)
	for range s.r.IntN(4) {
		s.now = s.now.Add(time.Duration(s.r.IntN(120)) * time.Second)
		s.Tick(s.t.Context())
		s.held(s.random(fmt.Sprintf("r%d", s.r.IntN(12))))
	}
	if after := s.state(); after != before {
		s.t.Errorf("while the clock was wrong, this became of\n%s:\n%s", before, after)
	}
	if s.r.IntN(3) > 0 {
		s.say("the clock is set right")
		set(-d)
		return
	}
	s.say("the server restarts, and believes the clock")
	s.restart()
	s.Tick(s.t.Context())
}

// held has a request be refused.
func (s *sequence) held(r *onpath.Reservation) {
	r.Spec.From, r.Spec.Until, r.Spec.Slots = time.Time{}, time.Time{}, nil
	if r.Spec.Capacity == (onpath.Resources{}) {
		r.Spec.Capacity = cores(1)
	}
	if q, err := s.apply(r); onpath.CodeOf(err) != onpath.CodeUnavailable {
		s.t.Errorf("%s was admitted while the clock was wrong: %+v %v", r.Metadata.Name, q, err)
	}
}

// state is what all reservations and the account are.
func (s *sequence) state() string {
	a, err := s.Account(s.t.Context(), onpath.DefaultTenant)
	out := fmt.Sprintf("%+v %v\n", a, err)
	for _, k := range sortedKeysOf(s.queue.state.rows.entries) {
		out += fmt.Sprintf("%s %+v\n", k.Name, s.queue.state.rows.entries[k].obj.Status)
	}
	return out
}

// failedRightly: what failed since the last look had a node that was silent for FailAfter, by
// itself: no cut of a cloudlet was under way.
func (s *sequence) failedRightly() {
	for _, k := range sortedKeysOf(s.queue.state.rows.entries) {
		st := &s.queue.state.rows.entries[k].obj.Status
		failed := st.State == onpath.ReservationFailed
		was := s.failed[k.Name]
		if s.failed[k.Name] = failed; !failed || was {
			continue
		}
		rightly := false
		for _, x := range st.Places {
			n := s.nodes[x.Node]
			rightly = rightly || n.Gone && !n.Alive && s.now.Sub(n.Since) >= FailAfter && !s.cutOff(n)
		}
		if !rightly {
			s.t.Errorf("reservation %s failed (%s), and none of its nodes was silent alone for %s: %+v", k.Name, st.Reason, FailAfter, s.nodes)
		}
	}
}

// cutOff reports whether a node fell silent with all others of a cloudlet of several nodes.
func (s *sequence) cutOff(n Node) bool {
	if n.Cloudlet != "fra" {
		return false
	}
	a, b := s.nodes["fra-1"], s.nodes["fra-2"]
	return a.Gone && b.Gone && a.Since.Sub(b.Since).Abs() <= together
}

// check compares the pool with what its reservations add up to.
func (s *sequence) check() {
	for name, wanted := range s.accepted {
		e := s.queue.state.rows.entries[onpath.Key{Kind: onpath.KindReservation, Tenant: onpath.DefaultTenant, Name: name}]
		switch {
		case e == nil:
			s.t.Errorf("reservation %s is gone", name)
		case !wanted:
		case e.obj.Status.State == onpath.ReservationFailed || e.obj.Status.State == onpath.ReservationEnded:
			if e.obj.Status.Reason == "" {
				s.t.Errorf("reservation %s is %s without a reason", name, e.obj.Status.State)
			}
		case !e.obj.Status.State.Live():
			s.t.Errorf("reservation %s is %s, and nobody asked for that", name, e.obj.Status.State)
		}
	}
	for _, x := range s.queue.state.rows.findMisbilled(latest(s.latest, s.now)) {
		s.t.Error(x)
	}
	most := s.owner[onpath.DefaultTenant].Most.CPU
	if has := s.queue.state.promises.reservedBy(onpath.DefaultTenant, latest(s.latest, s.now)).CPU; most > 0 && has > most {
		s.t.Errorf("%s is reserved at the most, the quota is %s", has, most)
	}
	for name, n := range s.nodes {
		room := plan.TenantsPart(n.Capacity, s.cls[n.Cloudlet].Share)
		for _, at := range s.instants() {
			sum := s.promisedAt(name, at)
			if !room.Fits(sum) {
				s.t.Errorf("node %s has promised %v at %s, and has %v", name, sum, at, room)
			}
			if got := s.queue.state.promises.cal.Peak(name, at, at.Add(1)); got != sum {
				s.t.Errorf("the calendar says that node %s has promised %v at %s; it is %v", name, got, at, sum)
			}
		}
	}
}

// instants are those at which what is promised changes, from the latest time on that any
// clock has shown: what was promised for a time that comes twice, as a clock is set back,
// has been changed by what was decided in it.
func (s *sequence) instants() []time.Time {
	s.latest = latest(s.latest, s.now)
	out := []time.Time{s.latest}
	for _, e := range s.queue.state.rows.entries {
		for _, x := range e.obj.Status.Slots {
			out = append(out, x.From, x.Until)
		}
		for _, x := range e.obj.Status.Places {
			out = append(out, x.LeavingUntil)
		}
	}
	out = slices.DeleteFunc(out, func(x time.Time) bool { return x.Before(s.latest) })
	sortTimes(out)
	return slices.CompactFunc(out, time.Time.Equal)
}

func (s *sequence) promisedAt(node string, at time.Time) (sum onpath.Resources) {
	for _, e := range s.queue.state.rows.entries {
		st := &e.obj.Status
		if !st.State.Live() {
			continue
		}
		for _, x := range st.Slots {
			if at.Before(x.From) || !x.Until.IsZero() && !at.Before(x.Until) {
				continue
			}
			for _, place := range st.Places {
				if place.Node == node || place.Leaving == node && at.Before(place.LeavingUntil) {
					sum = sum.Add(x.Capacity)
				}
			}
		}
	}
	return sum
}

// ledger checks that each posting can be recomputed, and that nobody got back more than
// was paid.
func (s *sequence) ledger() {
	c, err := s.CheckLedger(s.t.Context())
	if err != nil || len(c.Wrong) > 0 {
		s.t.Errorf("the ledger: %v %v", c, err)
	}
	list := s.allPostings(s.t)
	sum := onpath.Money(0)
	for _, p := range list {
		switch p.Kind {
		case onpath.PostingCharge:
			sum += p.Amount
		case onpath.PostingRefund, onpath.PostingCompensation:
			sum -= p.Amount
		}
		if sum < -onpath.Money(len(list)) { // parts are rounded one by one
			s.t.Errorf("posting %d gives back more than was paid: %+v", p.Number, p)
		}
	}
}
