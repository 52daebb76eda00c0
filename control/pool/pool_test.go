package pool

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/archive"
	"github.com/onpath/onpath/store/mem"
)

var start = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// fixture is a pool in virtual time.
type fixture struct {
	*Pool
	t     testing.TB
	store onpath.Store
	now   time.Time
	nodes map[string]Node
	cls   map[string]Cloudlet
	deny  map[string]bool // nodes that do not confirm
	use   map[onpath.Key]Use
	owner map[string]Bounds // of tenants
	boot  func() time.Duration
	// archive keeps closed days; nil: they stay in the store.
	archive *archive.Folder
	signer  archive.Signer
	// behind: the clock was set back, and what changed since counts for the time before too.
	behind bool
}

func setUp(t testing.TB) *fixture {
	f := &fixture{t: t, store: mem.New(mem.Options{}), now: start, nodes: map[string]Node{}, deny: map[string]bool{},
		use: map[onpath.Key]Use{}, owner: map[string]Bounds{}, cls: map[string]Cloudlet{
			"fra": {Share: 20, Location: onpath.Location{Latitude: 50, Longitude: 8.7}, Prefixes: prefixes("10.1.0.0/16")},
			"par": {Location: onpath.Location{Latitude: 48.9, Longitude: 2.3}, Prefixes: prefixes("10.2.0.0/16")},
			"lon": {Location: onpath.Location{Latitude: 51.5, Longitude: 0}},
		}}
	for name, cl := range map[string]string{"fra-1": "fra", "fra-2": "fra", "par-1": "par", "lon-1": "lon"} {
		f.nodes[name] = Node{Name: name, Cloudlet: cl, Usable: true, Capacity: onpath.Resources{CPU: 4000,
			Memory: 4 << 30, Disk: 4000 << 30, Network: 10e9}}
	}
	f.Pool = f.restart()
	return f
}

func prefixes(list ...string) (out []onpath.Prefix) {
	for _, s := range list {
		p, err := onpath.ParsePrefix(s)
		if err != nil {
			panic(err)
		}
		out = append(out, onpath.Prefix{Prefix: p})
	}
	return out
}

func (f *fixture) restart() *Pool {
	f.Pool = New(Options{
		Store: f.store, Clock: func() time.Time { return f.now }, Boot: f.boot, Archive: f.archive,
		Confirm: func(_ context.Context, node string, r onpath.PromiseRequest) error {
			if f.deny[node] {
				return fmt.Errorf("node %s is not ready", node)
			}
			if c := f.nodes[node].Capacity; !c.Fits(r.Promised) && !f.behind {
				f.t.Errorf("node %s is asked for %v, it has %v", node, r.Promised, c)
			}
			return nil
		},
		Use:    func(k onpath.Key) Use { return f.use[k] },
		Tenant: func(_ context.Context, name string) (Bounds, error) { return f.owner[name], nil },
	})
	f.observe()
	if err := f.Load(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return f.Pool
}

// through has the pool read and write by another store.
func (f *fixture) through(s onpath.Store) {
	f.queue.store, f.read.store, f.priceList.store = s, s, s
}

func (f *fixture) observe() {
	var list []Node
	for _, name := range sortedKeys(f.nodes) {
		list = append(list, f.nodes[name])
	}
	f.Observe(list, f.cls)
}

// pass lets time pass, and what is due be done.
func (f *fixture) pass(d time.Duration) {
	for until := f.now.Add(d); ; {
		f.Tick(f.t.Context())
		if len(f.queue.state.rows.agenda) == 0 || f.queue.state.rows.agenda[0].due.After(until) {
			f.now = until
			f.Tick(f.t.Context())
			return
		}
		f.now = latest(f.now, f.queue.state.rows.agenda[0].due)
	}
}

func request(name string, from, until time.Duration, c onpath.Resources) *onpath.Reservation {
	o, _ := onpath.New(onpath.KindReservation)
	r := o.(*onpath.Reservation)
	r.Metadata.Name = name
	r.Spec.From, r.Spec.Capacity = start.Add(from), c
	if until != 0 {
		r.Spec.Until = start.Add(until)
	}
	return r
}

func cores(n float64) onpath.Resources { return onpath.Resources{CPU: onpath.CPU(n * 1000)} }

// checked is a copy that is what a server makes of r before the pool sees it.
func (f *fixture) checked(r *onpath.Reservation) *onpath.Reservation {
	f.t.Helper()
	r = copyOf(r)
	r.Spec.Slots = slices.Clone(r.Spec.Slots)
	if err := r.Validate(); err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fixture) apply(r *onpath.Reservation) (onpath.Quote, error) {
	f.t.Helper()
	r = f.checked(r)
	q, err := f.Apply(f.t.Context(), []*onpath.Reservation{r}, nil, false)
	if err != nil {
		return onpath.Quote{}, err
	}
	return q[0], nil
}

func (f *fixture) must(r *onpath.Reservation) onpath.Quote {
	f.t.Helper()
	q, err := f.apply(r)
	if err != nil {
		f.t.Fatal(err)
	}
	return q
}

func (f *fixture) get(name string) *onpath.Reservation {
	f.t.Helper()
	o, err := f.store.Get(f.t.Context(), onpath.Key{Kind: onpath.KindReservation, Tenant: onpath.DefaultTenant, Name: name})
	if err != nil {
		f.t.Fatal(err)
	}
	return o.(*onpath.Reservation)
}

func (f *fixture) prices(s onpath.PriceListSpec) {
	f.t.Helper()
	o, _ := onpath.New(onpath.KindPriceList)
	l := o.(*onpath.PriceList)
	l.Spec = s
	l.Metadata.Name = onpath.DefaultPriceList
	if err := l.Validate(); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.store.Write(f.t.Context(), onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(l), Object: l,
		Version: onpath.AnyVersion}}}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) credit(amount onpath.Money) {
	f.t.Helper()
	if _, err := f.enter(onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: amount, Reference: rand.Text()}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) enter(e onpath.MoneyEntry) (onpath.Account, error) {
	return f.Enter(f.t.Context(), onpath.DefaultTenant, e)
}

func (f *fixture) balance(want onpath.Money) {
	f.t.Helper()
	if a, err := f.Account(f.t.Context(), onpath.DefaultTenant); err != nil || a.Balance != want {
		f.t.Errorf("the balance is %s, want %s: %v", a.Balance, want, err)
	}
	c, err := f.CheckLedger(f.t.Context())
	if err != nil || len(c.Wrong) > 0 {
		f.t.Errorf("the ledger: %v %v", c, err)
	}
}

// simple costs 1 for a core and hour.
var simple = onpath.PriceListSpec{Currency: "EUR", Hour: onpath.UnitPrices{CPU: 1_000_000}}

func TestLife(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(10_000_000)
	q := f.must(request("evening", time.Hour, 3*time.Hour, cores(2)))
	if q.State != onpath.ReservationConfirmed || q.Cloudlet != "fra" || q.Price != 4_000_000 {
		t.Fatalf("%+v", q)
	}
	f.balance(6_000_000)
	if again := f.must(request("evening", time.Hour, 3*time.Hour, cores(2))); again.Price != 0 {
		t.Errorf("the same again costs %s", again.Price)
	}
	f.pass(30 * time.Minute)
	if len(f.Running()) != 0 {
		t.Error("it runs long before its time")
	}
	f.pass(29*time.Minute + 30*time.Second)
	if len(f.Running()) != 1 {
		t.Error("the planner is not told that it begins soon")
	}
	f.restart()
	f.pass(31 * time.Second)
	if s := f.get("evening").Status; s.State != onpath.ReservationActive {
		t.Errorf("it is %s", s.State)
	}
	f.pass(2 * time.Hour)
	if s := f.get("evening").Status; s.State != onpath.ReservationEnded || len(s.Steps) != 4 {
		t.Errorf("it is %s: %v", s.State, s.Steps)
	}
	if len(f.Running()) != 0 || f.queue.state.promises.cal.Peak("fra-1", start, start.Add(9*time.Hour)) != (onpath.Resources{}) {
		t.Error("something of it is left")
	}
	f.balance(6_000_000)
}

func TestDeclined(t *testing.T) {
	f := setUp(t)
	for i := range 2 { // both nodes of fra, 3.2 cores each
		r := request(fmt.Sprintf("big%d", i), 0, time.Hour, cores(3))
		r.Spec.Cloudlet = "fra"
		f.must(r)
	}
	r := request("more", 0, time.Hour, cores(1))
	r.Spec.Cloudlet = "fra"
	_, err := f.apply(r)
	if onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), "lacks 800m of CPU") ||
		!strings.Contains(err.Error(), "from 2026-11-24T13:00:00Z") {
		t.Errorf("%v", err)
	}
	r.Spec.Cloudlet = ""
	if q := f.must(r); q.Cloudlet != "lon" {
		t.Errorf("it is in %s", q.Cloudlet)
	}
	near := request("near", 0, time.Hour, cores(1))
	near.Spec.Near = prefixes("10.2.3.0/24")[0]
	if q := f.must(near); q.Cloudlet != "par" {
		t.Errorf("it is in %s", q.Cloudlet)
	}
	f.deny["par-1"] = true
	near.Metadata.Name = "near2"
	if q := f.must(near); q.Cloudlet != "lon" {
		t.Errorf("par does not confirm, and it is in %s", q.Cloudlet)
	}
	limit := onpath.Money(100)
	dear := request("dear", 0, time.Hour, cores(0.5))
	dear.Spec.MaxPrice = &limit
	f.prices(simple)
	if _, err := f.apply(dear); onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), "maxPrice") {
		t.Errorf("%v", err)
	}
	dear.Spec.MaxPrice = nil
	if _, err := f.apply(dear); onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), "account") {
		t.Errorf("%v", err)
	}
}

// TestPoor: what an account lacks is said of all that is to be paid.
func TestPoor(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(2_999_999)
	r := request("r", 0, 0, onpath.Resources{})
	r.Spec.Slots = []onpath.ReservationSlot{{Until: start.Add(time.Hour), Capacity: cores(1)},
		{Until: start.Add(2 * time.Hour), Capacity: cores(2)}}
	if _, err := f.apply(r); onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), "has 2.999999, and 3 is to be paid") {
		t.Errorf("%v", err)
	}
	f.balance(2_999_999)
	f.credit(1)
	f.must(r)
	f.balance(0)
}

// TestRefund: PacketCloud §3.5, with one slot that runs and one that does not.
func TestRefund(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(10_000_000)
	r := request("r", 0, 0, onpath.Resources{})
	r.Spec.Slots = []onpath.ReservationSlot{{Until: start.Add(time.Hour), Capacity: cores(1)},
		{Until: start.Add(2 * time.Hour), Capacity: cores(2)}}
	if q := f.must(r); q.Price != 3_000_000 {
		t.Fatalf("%+v", q)
	}
	f.pass(30 * time.Minute)
	q, err := f.Apply(t.Context(), nil, []onpath.Key{onpath.KeyOf(r)}, false)
	if err != nil || q[0].Refund != 1_000_000 { // half of the second slot's 2: it begins in half of the time since it was paid
		t.Fatalf("%+v %v", q, err)
	}
	f.balance(8_000_000)
	if s := f.get("r").Status; s.State != onpath.ReservationCancelled || s.Paid != 3_000_000 || s.Refunded != 1_000_000 {
		t.Errorf("%+v", s)
	}
}

func TestChange(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(100_000_000)
	r := request("r", 0, 4*time.Hour, cores(1))
	r.Spec.Cloudlet = "fra"
	f.must(r)
	f.pass(time.Hour)
	r.Spec.Capacity = cores(2) // three hours more of a core
	if q := f.must(r); q.Price != 3_000_000 || !q.Holds.IsZero() {
		t.Errorf("%+v", q)
	}
	f.balance(93_000_000)
	r.Spec.Until = start.Add(2 * time.Hour) // gives up 2 cores × 2 hours from 14:00 on
	f.pass(30 * time.Minute)
	if q := f.must(r); q.Refund != 2_000_000/4+2_000_000/2 { // a core paid at 12:00, the other at 13:00
		t.Errorf("%+v", q)
	}
	f.pass(time.Hour)
	if s := f.get("r").Status; s.State != onpath.ReservationEnded {
		t.Errorf("%+v", s)
	}
	f.balance(94_000_000 + 500_000)
}

func TestConflict(t *testing.T) {
	f := setUp(t)
	a, b := request("a", 0, 4*time.Hour, cores(1)), request("b", 0, 4*time.Hour, cores(2))
	for _, r := range []*onpath.Reservation{a, b} {
		r.Spec.Cloudlet = "fra"
		f.must(r)
	}
	if f.get("a").Status.Places[0].Node != f.get("b").Status.Places[0].Node {
		t.Fatal("they are on different nodes")
	}
	f.use[onpath.KeyOf(a)] = Use{Stateless: true, Drain: 5 * time.Second}
	f.use[onpath.KeyOf(b)] = Use{Drain: 30 * time.Second}
	f.pass(time.Minute)
	b.Spec.Capacity = cores(3)
	q := f.must(b)
	if want := f.now.Add(5*time.Second + startTime); !q.Holds.Equal(want) {
		t.Errorf("it holds from %v, want %v", q.Holds, want)
	}
	if s := f.get("a").Status.Places[0]; s.Node != "fra-2" || s.Leaving != "fra-1" {
		t.Errorf("a is at %+v", s)
	}
	if s := f.get("b").Status; s.Places[0].Node != "fra-1" || capacityAt(s.Slots, f.now) != cores(2) {
		t.Errorf("b is %+v", s)
	}
	f.pass(time.Minute)
	if s := f.get("b").Status; capacityAt(s.Slots, f.now) != cores(3) || !s.Holds.IsZero() {
		t.Errorf("b is %+v", s)
	}
	if s := f.get("a").Status.Places[0]; s.Leaving != "" {
		t.Errorf("a is at %+v", s)
	}
}

// TestLeftEarly: a growth that waits begins as soon as what made room has left.
func TestLeftEarly(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(100_000_000)
	a, b := request("a", 0, 4*time.Hour, cores(1)), request("b", 0, 4*time.Hour, cores(2))
	for _, r := range []*onpath.Reservation{a, b} {
		r.Spec.Cloudlet = "fra"
		f.must(r)
	}
	f.use[onpath.KeyOf(a)] = Use{Stateless: true, Drain: 5 * time.Second, Nodes: map[string]int{"fra-1": 1}}
	f.use[onpath.KeyOf(b)] = Use{Drain: 30 * time.Second, Nodes: map[string]int{"fra-1": 1}}
	f.pass(time.Minute)
	b.Spec.Capacity = cores(3)
	f.must(b)
	f.pass(2 * time.Second)
	if s := f.get("b").Status; capacityAt(s.Slots, f.now) != cores(2) {
		t.Errorf("it has grown before there was room: %+v", s)
	}
	f.use[onpath.KeyOf(a)] = Use{Stateless: true, Drain: 5 * time.Second, Nodes: map[string]int{"fra-2": 1}}
	f.pass(2 * time.Second)
	if s := f.get("b").Status; capacityAt(s.Slots, f.now) != cores(3) || !s.Holds.IsZero() {
		t.Errorf("b is %+v", s)
	}
	if s := f.get("a").Status.Places[0]; s.Leaving != "" {
		t.Errorf("a is at %+v", s)
	}
	f.balance(100_000_000 - 4_000_000 - 8_000_000 - 3_979_167)
}

func TestNodeGone(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(100_000_000)
	for _, r := range []*onpath.Reservation{request("a", 0, 4*time.Hour, cores(2)), request("b", 0, 4*time.Hour, cores(3))} {
		r.Spec.Cloudlet = "fra"
		f.must(r)
	}
	f.pass(time.Hour)
	n := f.nodes["fra-1"]
	n.Usable, n.Gone, n.Dead, n.Since = false, true, true, f.now
	f.nodes["fra-1"] = n
	f.pass(6 * time.Minute)
	f.observe()
	f.pass(time.Second)
	if s := f.get("a").Status; s.State != onpath.ReservationInterrupted || s.Refunded != 0 {
		t.Errorf("a %+v", s)
	}
	f.pass(FailAfter - 6*time.Minute)
	a, b := f.get("a").Status, f.get("b").Status
	if a.State != onpath.ReservationFailed || b.State != onpath.ReservationActive {
		t.Errorf("a %+v, b %+v", a, b)
	}
	if a.Refunded != 6_000_000 { // three hours of two cores
		t.Errorf("a gets %s", a.Refunded)
	}
	f.balance(100_000_000 - 20_000_000 + 6_000_000)
}

func TestOpenEnded(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(3_500_000)
	f.must(request("open", 0, 0, cores(1)))
	f.balance(2_500_000)
	f.pass(2*time.Hour + time.Minute)
	f.balance(500_000)
	f.pass(time.Hour)
	if s := f.get("open").Status; s.State != onpath.ReservationEnded || !strings.Contains(s.Reason, "account") {
		t.Errorf("%+v", s)
	}
	f.balance(500_000)
}

// TestChangedOften: a reservation that is changed on and on is refused at last, and ends as
// any other. But for ONPATH_SOAK, most of its changes are found in the store.
func TestChangedOften(t *testing.T) {
	f := setUp(t)
	r := request("r", 0, 0, onpath.Resources{})
	for i := range onpath.MaxSlots {
		r.Spec.Slots = append(r.Spec.Slots, onpath.ReservationSlot{Until: start.Add(time.Duration(i+1) * time.Second), Capacity: cores(float64(1+i%2) / 4)})
	}
	last := &r.Spec.Slots[onpath.MaxSlots-1]
	last.Until = time.Time{}
	f.must(r)
	f.pass(onpath.MaxSlots * time.Second)
	if os.Getenv("ONPATH_SOAK") == "" {
		f.divide("r", start.Add(onpath.MaxSlots*time.Second), mostSlots-10)
	}
	var err error
	for n := 0; err == nil && n <= mostSlots; n++ {
		f.now = f.now.Add(time.Second)
		last.Capacity = cores(float64(1+n%2) / 4)
		_, err = f.apply(r)
	}
	if n := len(f.get("r").Status.Slots); onpath.CodeOf(err) != onpath.CodeInvalid || n != mostSlots {
		t.Errorf("with %d slots: %v", n, err)
	}
	f.pass(3 * time.Hour)
	if _, err := f.Apply(t.Context(), nil, []onpath.Key{onpath.KeyOf(r)}, false); err != nil {
		t.Error(err)
	}
	if st := f.get("r").Status.State; st != onpath.ReservationCancelled {
		t.Errorf("it is %s", st)
	}
}

// divide has a reservation have n slots, as if it had changed so often until a time.
func (f *fixture) divide(name string, until time.Time, n int) {
	f.t.Helper()
	r := f.get(name)
	st := &r.Status
	each := until.Sub(st.Begin()) / time.Duration(n)
	at := st.Begin()
	st.Slots = nil
	for i := range n {
		st.Slots = append(st.Slots, onpath.ReservationSlot{From: at, Until: at.Add(each), Capacity: cores(float64(1+i%2) / 4)})
		at = at.Add(each)
	}
	st.Slots[n-1].Until = time.Time{}
	if _, err := f.store.Write(f.t.Context(), onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(r), Object: r,
		Version: r.Metadata.Version}}}); err != nil {
		f.t.Fatal(err)
	}
	f.restart()
}
