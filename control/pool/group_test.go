package pool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store"
)

// slowStore keeps a write waiting until it is let through, or refuses it.
type slowStore struct {
	onpath.Store
	mu     sync.Mutex
	writes int
	by     map[string]string // who has reservations written, by their names
	hold   chan error        // nil: open
}

func (s *slowStore) Write(ctx context.Context, b onpath.Batch) (onpath.Written, error) {
	s.mu.Lock()
	s.writes++
	for _, ch := range b.Changes {
		if s.by == nil {
			s.by = map[string]string{}
		}
		if s.by[ch.Key.Name] = store.AuthorOf(ctx, ch.Key); store.IsFollowUp(ctx) {
			s.by[ch.Key.Name] += " onpath itself"
		}
	}
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		if err := <-hold; err != nil {
			return onpath.Written{}, err
		}
	}
	return s.Store.Write(ctx, b)
}

func (s *slowStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

func (s *slowStore) close() chan error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes, s.hold = 0, make(chan error)
	return s.hold
}

func (s *slowStore) open(hold chan error, err error) {
	s.mu.Lock()
	s.hold = nil
	s.mu.Unlock()
	if err != nil {
		hold <- err
	}
	close(hold)
}

// together has n reservations be asked for while the write of the first waits, which then
// is let through or refused.
func (f *fixture) together(s *slowStore, name string, n int, err error) []error {
	hold, errs := s.close(), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		r := request(fmt.Sprintf("%s-%d", name, i), time.Hour, 2*time.Hour, cores(0.1))
		if r.Spec.Instances = 1; i%5 == 4 { // somebody asks twice at once
			r.Metadata.Name = fmt.Sprintf("%s-%d", name, i-1)
		}
		wg.Go(func() { _, errs[i] = f.Apply(f.t.Context(), []*onpath.Reservation{r}, nil, false) })
		f.wait(func() bool { return s.count() > 0 && len(f.queue.state.rows.pending) >= i+1-(i+1)/5 })
	}
	s.open(hold, err)
	wg.Wait()
	return errs
}

func (f *fixture) wait(until func() bool) {
	f.t.Helper()
	for range 20_000 {
		f.queue.mu.Lock()
		ok := until()
		f.queue.mu.Unlock()
		if ok {
			return
		}
		time.Sleep(time.Millisecond)
	}
	f.t.Fatal("what is waited for does not come")
}

// TestTogether: requests that come while one is written share the next transactions; each
// is paid once. If the write is refused, nothing of those that rest on it stays.
func TestTogether(t *testing.T) {
	f := setUp(t)
	s := &slowStore{Store: f.store}
	f.store = s
	f.Pool = f.restart()
	f.prices(onpath.PriceListSpec{Hour: onpath.UnitPrices{CPU: 1_000_000}})
	f.credit(100_000_000)
	for _, err := range f.together(s, "a", 40, nil) {
		if err != nil {
			t.Error(err)
		}
	}
	if n := s.count(); n > 5 {
		t.Errorf("40 requests took %d transactions", n)
	}
	f.balance(100_000_000 - 32*100_000)
	check := &sequence{fixture: f, accepted: map[string]bool{}}
	for i := range 40 {
		check.accepted[fmt.Sprintf("a-%d", i-i%5/4)] = true
	}
	check.check()

	if errs := f.together(s, "b", 1, onpath.Errorf(onpath.CodeInvalid, "too large")); onpath.CodeOf(errs[0]) != onpath.CodeInvalid {
		t.Errorf("a write is refused: %v", errs[0])
	}
	errs := f.together(s, "c", 10, onpath.Errorf(onpath.CodeInvalid, "too large"))
	if onpath.CodeOf(errs[0]) != onpath.CodeInvalid {
		t.Errorf("the first is too large: %v", errs[0])
	}
	for i := 1; i < 10; i++ { // they are decided again
		if errs[i] != nil {
			t.Errorf("request %d: %v", i, errs[i])
		}
	}
	f.balance(100_000_000 - (32+7)*100_000)

	for i, err := range f.together(s, "d", 10, onpath.Errorf(onpath.CodeConflict, "another server wrote")) {
		if onpath.CodeOf(err) != onpath.CodeUnavailable {
			t.Errorf("request %d was not written: %v", i, err)
		}
	}
	f.Tick(t.Context()) // reads again
	check.check()
	f.balance(100_000_000 - (32+7)*100_000)
	check.ledger()
}

// TestManyAtOnce: what is due of many reservations at one time takes few transactions.
func TestManyAtOnce(t *testing.T) {
	f := setUp(t)
	s := &slowStore{Store: f.store}
	f.store = s
	f.Pool = f.restart()
	f.prices(onpath.PriceListSpec{Hour: onpath.UnitPrices{CPU: 1_000_000}})
	f.credit(100_000_000)
	for i := range 60 {
		r := request(fmt.Sprintf("r-%d", i), time.Hour, 2*time.Hour, cores(0.1))
		if i%2 == 0 {
			r.Spec.Until = time.Time{}
		}
		f.must(r)
	}
	before := s.count()
	f.pass(3*time.Hour + time.Minute) // all begin, half end, half pay three more hours
	if n := s.count() - before; n > 20 {
		t.Errorf("%d transactions", n)
	}
	for i := range 60 {
		want := onpath.ReservationActive
		if i%2 == 1 {
			want = onpath.ReservationEnded
		}
		if got := f.get(fmt.Sprintf("r-%d", i)).Status.State; got != want {
			t.Errorf("reservation %d is %s", i, got)
		}
	}
	f.balance(100_000_000 - (30+30*3)*100_000)
}

// TestAuthors: each decision of a group is written for who asked for it, not for who waits
// for the group.
func TestAuthors(t *testing.T) {
	f := setUp(t)
	s := &slowStore{Store: f.store}
	f.store = s
	f.Pool = f.restart()
	hold, names := s.close(), []string{"ann", "bob", "carl"}
	var wg sync.WaitGroup
	for i, name := range names {
		r := request(name, time.Hour, 2*time.Hour, cores(0.1))
		r.Spec.Instances = 1
		wg.Go(func() {
			if _, err := f.Apply(store.By(f.t.Context(), name), []*onpath.Reservation{r}, nil, false); err != nil {
				t.Error(err)
			}
		})
		f.wait(func() bool { return s.count() > 0 && len(f.queue.state.rows.pending) > i })
	}
	s.open(hold, nil)
	wg.Wait()
	for _, name := range names {
		if got := s.by[name]; got != name {
			t.Errorf("the reservation of %s is written for %q", name, got)
		}
	}
}

// TestReadAgainWhileWriting: all is read again once what is being written is written: the calendar
// knows it as the store does.
func TestReadAgainWhileWriting(t *testing.T) {
	f := setUp(t)
	s := &slowStore{Store: f.store}
	f.through(s)
	f.owner["acme"] = Bounds{UID: "1"}
	_, done, err := f.RemoveTenant(t.Context(), &onpath.Tenant{Metadata: onpath.Metadata{Name: "acme", UID: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	hold := s.close()
	var wg sync.WaitGroup
	r := request("r", time.Hour, 2*time.Hour, cores(1))
	r.Spec.Instances = 1
	wg.Go(func() { _, err = f.Apply(t.Context(), []*onpath.Reservation{r}, nil, false) })
	f.wait(func() bool { return s.count() > 0 })
	done(0) // nobody knows whether the removal was written
	ticked := make(chan bool)
	wg.Go(func() { f.Tick(t.Context()); close(ticked) })
	select {
	case <-ticked:
		t.Error("all was read again while something was being written")
	case <-time.After(50 * time.Millisecond):
	}
	s.open(hold, nil)
	wg.Wait()
	f.Tick(t.Context())
	at := f.get("r").Status.Places[0].Node
	if got := f.queue.state.promises.cal.Peak(at, start, start.Add(10*time.Hour)); err != nil || got != cores(1) {
		t.Errorf("%v; node %s has promised %v", err, at, got)
	}
}

// TestEverybodyAtOnce: requests, changes, cancellations, moves, entries and what is due come at
// once, while nodes drain and come back. The calendar and the ledger are what is stored.
func TestEverybodyAtOnce(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(10_000_000_000)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	var users, ticking sync.WaitGroup
	for u := range uint64(6) {
		users.Go(func() {
			r := rand.New(rand.NewPCG(uint64(seed), u))
			for range 60 {
				k := onpath.Key{Kind: onpath.KindReservation, Tenant: onpath.DefaultTenant, Name: fmt.Sprint("r", r.IntN(8))}
				o := request(k.Name, time.Duration(1+r.IntN(3))*time.Hour, 5*time.Hour, cores(float64(1+r.IntN(8))/4))
				o.Spec.Instances, o.Spec.Cloudlet = 1+r.IntN(2), "fra"
				switch r.IntN(6) {
				case 0:
					_, _ = f.Apply(t.Context(), nil, []onpath.Key{k}, false)
				case 1:
					_, _ = f.Move(t.Context(), k, "fra-1", "")
				case 2:
					_, _ = f.Enter(t.Context(), k.Tenant, onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 1, Reference: fmt.Sprint(u, r.Uint64())})
				default:
					_, _ = f.Apply(t.Context(), []*onpath.Reservation{o}, nil, r.IntN(4) == 0)
				}
			}
		})
	}
	over := make(chan bool)
	ticking.Go(func() {
		for k := 0; ; k++ {
			select {
			case <-over:
				return
			default:
			}
			n := f.nodes["fra-2"]
			n.Drain = k%20 > 14
			n.Usable = !n.Drain
			f.Observe([]Node{f.nodes["fra-1"], n, f.nodes["par-1"], f.nodes["lon-1"]}, f.cls)
			f.Tick(t.Context())
		}
	})
	users.Wait()
	close(over)
	ticking.Wait()
	s := &sequence{fixture: f, accepted: map[string]bool{}, latest: start}
	s.check()
	f.restart()
	s.check()
	s.ledger()
}
