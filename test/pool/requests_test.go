package pool

import (
	"fmt"
	"math/big"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// Times of a request after its beginning.
const (
	changeAt = 6 * time.Second
	endAt    = 13 * time.Second
	// conflictEndAt of one that has others move, for which the server allows 10 s and
	// their drain.
	conflictEndAt = 24 * time.Second
)

// apart is the time from one request's beginning to the next one's.
const apart = 800 * time.Millisecond

// Bounds of what a request's tenant sees: from its beginning until its chain steers, less
// its instance's own start; and from its end until the server knows that nothing of its
// instance is left.
const (
	readyWithin = time.Second
	goneWithin  = time.Second
)

// request is a reservation with a deployment, a chain and a stream of its own.
type request struct {
	name, kind string
	port       int
	begin, end time.Time
	slots      []onpath.ReservationSlot // as its file says in the end
	// Filled while it runs; promised are the slots as a change was accepted. One that has to
	// wait for others to move is charged from when it holds at the latest.
	promised           []onpath.ReservationSlot
	lost, sent         uint64
	asked              time.Time // of a change
	whole, own, resize time.Duration
	gone               time.Duration
}

// Sizes of instances.
var (
	small  = onpath.Resources{CPU: 100, Memory: 64 << 20, Network: 10_000_000}
	large  = onpath.Resources{CPU: 200, Memory: 96 << 20, Network: 20_000_000}
	half   = onpath.Resources{CPU: 1000, Memory: 64 << 20, Network: 10_000_000}
	most   = onpath.Resources{CPU: 2000, Memory: 64 << 20, Network: 10_000_000}
	beyond = onpath.Resources{CPU: 3000, Memory: 64 << 20, Network: 10_000_000} // of a node's 3.6 less half
)

// TestTwentyRequests has twenty requests run in the laboratory while UDP at 80 % of the
// smaller rate passes each one's instance: slots that grow and shrink by themselves and by
// a change, instances that move by a command and by a conflict, and cancellations. None
// loses a packet, each is ready and gone in time, and each is charged as its file says.
func TestTwentyRequests(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; this takes a minute")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces, eBPF and containers")
	}
	l := setUpLab(t)
	credit, err := l.api.Pool().Enter(t.Context(), onpath.DefaultTenant,
		onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 100 * onpath.Millionths, Reference: "transfer 1"})
	if err != nil {
		t.Fatal(err)
	}
	l.write("hosts", labHosts)
	kinds := strings.Fields("grows grows grows grows grows shrinks shrinks shrinks shrinks " +
		"grown grown grown cut cut moved moved")
	l.serve(kinds, time.Now().Add(10*time.Second))
	l.serve([]string{"displaced", "displaces"}, time.Now().Add(5*time.Second))
	l.cancelled("later-0")
	l.cancelled("later-1")
	l.checkLedger(credit.Balance)
}

// serve makes requests of the kinds, which begin one after the other, and has them run.
func (l *laboratory) serve(kinds []string, begin time.Time) {
	l.t.Helper()
	var requests []*request
	var reservations, services strings.Builder
	for i, kind := range kinds {
		r := &request{name: fmt.Sprintf("%s-%d", kind, i), kind: kind, port: 5400 + i,
			begin: begin.Add(time.Duration(i) * apart).Truncate(time.Millisecond)}
		r.end = r.begin.Add(endAt)
		if strings.HasPrefix(kind, "displace") {
			r.end = r.begin.Add(conflictEndAt)
		}
		r.slots = r.first()
		requests = append(requests, r)
		reservations.WriteString(r.file())
		services.WriteString(r.service())
	}
	l.write("reservations", reservations.String())
	l.write("services", services.String())
	if late := time.Since(begin); late > 0 {
		l.t.Fatalf("the requests were made %s after they were to begin", late)
	}
	var running sync.WaitGroup
	for _, r := range requests {
		running.Go(func() { l.run(r) })
	}
	running.Wait()
	for _, r := range requests {
		l.check(r)
		l.sent[r.name] = r.sent * packet
	}
}

// first are a request's slots as it is made.
func (r *request) first() []onpath.ReservationSlot {
	change, end := r.begin.Add(changeAt), r.end
	one := func(c onpath.Resources) []onpath.ReservationSlot {
		return []onpath.ReservationSlot{{From: r.begin, Until: end, Capacity: c}}
	}
	two := func(a, b onpath.Resources) []onpath.ReservationSlot {
		return []onpath.ReservationSlot{{From: r.begin, Until: change, Capacity: a}, {From: change, Until: end, Capacity: b}}
	}
	switch r.kind {
	case "grows":
		return two(small, large)
	case "shrinks":
		return two(large, small)
	case "cut":
		return one(large)
	case "displaced":
		return one(half)
	case "displaces":
		return one(most)
	}
	return one(small)
}

// changed is the capacity that a change asks for; false: none does.
func (r *request) changed() (onpath.Resources, bool) {
	c, ok := map[string]onpath.Resources{"grown": large, "cut": small, "displaces": beyond}[r.kind]
	return c, ok
}

func (r *request) file() string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: onpath/v1alpha1\nkind: Reservation\nmetadata: {name: %s}\n", r.name)
	fmt.Fprintf(&b, "spec:\n  cloudlet: fra\n  from: %s\n  slots:\n", text(r.begin))
	for _, s := range r.slots {
		c := s.Capacity
		fmt.Fprintf(&b, "  - {until: %s, capacity: {cpu: %s, memory: %s, network: %s}}\n", text(s.Until), c.CPU, c.Memory, c.Network)
	}
	return b.String()
}

func text(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func (r *request) service() string {
	return fmt.Sprintf(`---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: %[1]s}
spec: {function: monitor, reservation: %[1]s, drain: 1s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: %[1]s}
spec:
  from: {hosts: clients}
  to: {hosts: origin}
  at: {cloudlets: [fra]}
  select: [{destinationPorts: ["%[2]d"]}]
  through: [{deployment: %[1]s}]
`, r.name, r.port)
}

// run waits for a request's chain, sends through it while it changes, and waits until
// its instance is gone.
func (l *laboratory) run(r *request) {
	s := l.openStream(l.t, r.port)
	time.Sleep(time.Until(r.begin))
	if !l.await("chain "+r.name+" steers", func() (bool, error) { return !l.activeSince(r.name).IsZero(), nil }) {
		return
	}
	r.whole = l.activeSince(r.name).Sub(r.begin)
	for _, i := range l.of(r.name) {
		if !i.starting.IsZero() {
			r.own = i.ready.Sub(i.starting)
		}
	}
	var changing sync.WaitGroup
	changing.Go(func() { l.change(r) })
	rate := min(r.slots[0].Capacity.Network, r.slots[len(r.slots)-1].Capacity.Network)
	if c, ok := r.changed(); ok {
		rate = min(rate, c.Network)
	}
	r.lost, r.sent = s.run(l.t, int64(rate)*80/100, r.end.Add(-2*time.Second))
	changing.Wait()
	time.Sleep(time.Until(r.end))
	l.await("the instance of "+r.name+" is gone", func() (bool, error) {
		var last time.Time
		for _, i := range l.of(r.name) {
			if i.gone.IsZero() {
				return false, nil
			}
			if i.gone.After(last) {
				last = i.gone
			}
		}
		r.gone = last.Sub(r.end)
		return true, nil
	})
}

// change does what a request's kind says, while its stream runs.
func (l *laboratory) change(r *request) {
	time.Sleep(time.Until(r.begin.Add(changeAt)))
	r.asked = time.Now()
	if c, ok := r.changed(); ok {
		r.slots[0].Capacity = c
		l.write(r.name, r.file())
		r.promised = l.reservation(r.name).Status.Slots
	}
	if r.kind == "moved" {
		for name, i := range l.of(r.name) {
			if _, err := l.api.Pool().Move(l.t.Context(), onpath.DefaultTenant, name, ""); err != nil {
				l.t.Errorf("move %s from %s: %v", name, i.node, err)
			}
		}
	}
	want := r.slots[len(r.slots)-1].Capacity
	if want == r.first()[0].Capacity {
		return // it keeps its size
	}
	l.await(r.name+" is resized", func() (bool, error) {
		for _, i := range l.of(r.name) {
			for _, e := range i.resized {
				if strings.Contains(e.Message, fmt.Sprintf("has %s CPU", want.CPU)) {
					r.resize = e.Time.Sub(r.asked)
					return true, nil
				}
			}
		}
		return false, nil
	})
}

// check says what fell short of a request that ran.
func (l *laboratory) check(r *request) {
	nodes := map[string]bool{}
	for _, i := range l.of(r.name) {
		nodes[i.node] = true
	}
	o := l.reservation(r.name)
	st := &o.Status
	l.t.Logf("%-12s %-5s ready after %.2f s, its own start %.2f s; resized after %.2f s; gone after %.2f s; on %d nodes; "+
		"%d of %d lost; paid %s", r.name, st.State, r.whole.Seconds(), r.own.Seconds(), r.resize.Seconds(), r.gone.Seconds(),
		len(nodes), r.lost, r.sent, st.Paid)
	wrong := func(format string, args ...any) { l.t.Errorf(r.name+": "+format, args...) }
	if r.whole-r.own > readyWithin {
		wrong("it was ready %s after its beginning, its instance took %s to start", r.whole, r.own)
	}
	if r.gone > goneWithin {
		wrong("its instance was gone %s after its end", r.gone)
	}
	if r.sent == 0 || r.lost != 0 {
		wrong("%d of %d datagrams were lost", r.lost, r.sent)
	}
	if moves := r.kind == "moved" || r.kind == "displaced"; moves != (len(nodes) == 2) {
		wrong("it ran on %d nodes", len(nodes))
	}
	if st.State != onpath.ReservationEnded || st.Refunded != 0 {
		wrong("it is %s, and %s was given back", st.State, st.Refunded)
	}
	promised := r.slots
	if _, ok := r.changed(); ok { // the change holds from a time that the server chose
		promised = r.promised
		if n := len(promised); n != 2 || promised[0].Capacity != r.first()[0].Capacity || promised[1].Capacity != r.slots[0].Capacity ||
			promised[1].From.Before(r.asked.Add(-time.Millisecond)) || !promised[1].Until.Equal(r.slots[0].Until) {
			wrong("it was changed at %s to %v", text(r.asked), promised)
			return
		}
		if r.kind == "cut" { // what has begun gives nothing back
			promised = r.first()
		}
	}
	if want := cost(promised); !near(st.Paid, want) {
		wrong("it paid %s, its file says %s", st.Paid, want)
	}
}

// cost is what slots cost by labPrices.
func cost(slots []onpath.ReservationSlot) onpath.Money {
	sum := new(big.Rat)
	for _, s := range slots {
		hours := big.NewRat(int64(s.Until.Sub(s.From)), int64(time.Hour))
		hour := big.NewRat(36*int64(s.Capacity.CPU), 1000)
		hour.Add(hour, big.NewRat(72*int64(s.Capacity.Memory), 10<<30))
		hour.Add(hour, big.NewRat(18*int64(s.Capacity.Network), 1_000_000_000))
		sum.Add(sum, hour.Mul(hour, hours))
	}
	sum.Mul(sum, big.NewRat(int64(onpath.Millionths), 1))
	return onpath.Money(new(big.Int).Quo(sum.Num(), sum.Denom()).Int64())
}

// cancelled makes a request for later, gives it up, and compares what is given back with
// F × (tB − tC) / (tB − tA).
func (l *laboratory) cancelled(name string) {
	r := &request{name: name, begin: time.Now().Add(time.Minute).Truncate(time.Millisecond)}
	r.end = r.begin.Add(endAt)
	r.slots = r.first()
	l.write(name, r.file())
	time.Sleep(time.Second)
	if _, err := l.Onpath(l.t.Context(), "delete", "reservation", name); err != nil {
		l.t.Error(err)
	}
	st := &l.reservation(name).Status
	if st.State != onpath.ReservationCancelled || len(st.Steps) < 2 {
		l.t.Errorf("%s is %s", name, st.State)
		return
	}
	paid, given := st.Steps[0].At, st.Steps[len(st.Steps)-1].At
	share := big.NewRat(int64(r.begin.Sub(given)), int64(r.begin.Sub(paid)))
	share.Mul(share, big.NewRat(int64(st.Paid), 1))
	want := onpath.Money(new(big.Int).Quo(share.Num(), share.Denom()).Int64())
	l.t.Logf("%s paid %s, got %s back", name, st.Paid, st.Refunded)
	if !near(st.Paid, cost(r.slots)) || !near(st.Refunded, want) {
		l.t.Errorf("%s paid %s and got %s back; its file says %s, and %s of it", name, st.Paid, st.Refunded, cost(r.slots), want)
	}
}

// near allows for the rounding of two postings.
func near(a, b onpath.Money) bool { return -1 <= a-b && a-b <= 1 }

// checkLedger waits until the use of all that ran is billed, and compares the invoice with
// what was sent and with the account.
func (l *laboratory) checkLedger(credit onpath.Money) {
	month := time.Now().UTC().Format("2006-01")
	var inv *onpath.Invoice
	bytes := map[string]uint64{}
	l.await("use is billed", func() (bool, error) {
		var err error
		if inv, err = l.api.Pool().Invoice(l.t.Context(), onpath.DefaultTenant, month); err != nil {
			return false, err
		}
		for _, line := range inv.Lines {
			bytes[line.Reservation] = line.Bytes
		}
		for name, sent := range l.sent {
			if bytes[name] < sent {
				return false, nil
			}
		}
		return true, nil
	})
	for name, sent := range l.sent {
		if bytes[name] < sent || bytes[name] > sent+sent/100 {
			l.t.Errorf("%s is billed for %d bytes, %d were sent", name, bytes[name], sent)
		}
	}
	var total onpath.Money
	for _, line := range inv.Lines {
		total += line.Charged + line.Use - line.Refunded - line.Compensated
		if line.Compensated != 0 {
			l.t.Errorf("%s was compensated with %s", line.Reservation, line.Compensated)
		}
	}
	account, err := l.api.Pool().Account(l.t.Context(), onpath.DefaultTenant)
	if err != nil {
		l.t.Fatal(err)
	}
	if account.Balance != credit-total || inv.Total != total {
		l.t.Errorf("of %s, %s were spent by the invoice's lines, its total is %s and %s are left", credit, total, inv.Total, account.Balance)
	}
	check, err := l.api.Pool().CheckLedger(l.t.Context())
	if err != nil || len(check.Wrong) > 0 {
		l.t.Errorf("the ledger: %v, %v", check, err)
	}
	l.t.Logf("%d postings; %s paid in, %s left", account.Postings, credit, account.Balance)
}
