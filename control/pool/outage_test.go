package pool

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// silence has nodes not be heard of from now on; says is what peers say of them.
func (f *fixture) silence(says string, names ...string) {
	for _, name := range names {
		n := f.nodes[name]
		n.Usable, n.Gone, n.Since, n.Alive, n.Dead = false, true, f.now, says == "alive", says == "dead"
		f.nodes[name] = n
	}
}

// hear has nodes be heard of again.
func (f *fixture) hear(names ...string) {
	for _, name := range names {
		n := f.nodes[name]
		n.Usable, n.Gone, n.Since, n.Alive, n.Dead = !n.Drain, false, time.Time{}, false, false
		f.nodes[name] = n
	}
	f.observe()
	f.Tick(f.t.Context())
}

func (f *fixture) wants(name string, state onpath.ReservationState, instances int, reason string) {
	f.t.Helper()
	st := f.get(name).Status
	if st.State != state || len(st.Places) != instances || !strings.Contains(st.Reason, reason) {
		f.t.Errorf("%s is %s with %d instances (%s); want %s with %d (%s)", name, st.State, len(st.Places), st.Reason, state, instances, reason)
	}
}

// full has both nodes of fra serve reservations a and b, 3 cores each, for 10 hours.
func full(t *testing.T) *fixture {
	f := setUp(t)
	f.prices(simple)
	f.credit(1000_000_000)
	for _, name := range []string{"a", "b"} {
		r := request(name, 0, 10*time.Hour, cores(3))
		r.Spec.Cloudlet = "fra"
		f.must(r)
	}
	f.pass(time.Hour)
	return f
}

// TestCut: a network that is cut ends no reservation. Its time is credited, but where peers
// say that the machines answer.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		name   string
		nodes  []string
		says   string
		cut    time.Duration
		during onpath.ReservationState
		credit onpath.Money // of a, 3 an hour
	}{
		{"31 s of a cloudlet", []string{"fra-1", "fra-2"}, "", 31 * time.Second, onpath.ReservationInterrupted, 25_833},
		{"10 minutes of a cloudlet", []string{"fra-1", "fra-2"}, "", 10 * time.Minute, onpath.ReservationInterrupted, 500_000},
		{"two hours of a cloudlet", []string{"fra-1", "fra-2"}, "dead", 2 * time.Hour, onpath.ReservationInterrupted, 6_000_000},
		{"two hours of all", []string{"fra-1", "fra-2", "par-1", "lon-1"}, "", 2 * time.Hour, onpath.ReservationInterrupted, 6_000_000},
		{"59 minutes of one node", []string{"fra-1"}, "", 59 * time.Minute, onpath.ReservationInterrupted, 2_950_000},
		{"59 minutes of one dead node", []string{"fra-1"}, "dead", 59 * time.Minute, onpath.ReservationInterrupted, 2_950_000},
		{"a day of one node that its peers reach", []string{"fra-1"}, "alive", 8 * time.Hour, onpath.ReservationActive, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := full(t)
			f.silence(c.says, c.nodes...)
			f.now = f.now.Add(31 * time.Second)
			f.observe()
			f.pass(max(0, c.cut-31*time.Second))
			f.wants("a", c.during, 1, "")
			f.hear(c.nodes...)
			f.wants("a", onpath.ReservationActive, 1, "")
			f.wants("b", onpath.ReservationActive, 1, "")
			if got := f.get("a").Status; got.Refunded < c.credit-2 || got.Refunded > c.credit+2 {
				t.Errorf("%s is credited, want %s", got.Refunded, c.credit)
			}
			f.checkLedger()
			f.restart()
			f.pass(10 * time.Hour)
			f.wants("a", onpath.ReservationEnded, 1, "its time is over")
		})
	}
}

// TestOneOfTwo: of two instances one is lost. The other serves on; after FailAfter the
// reservation has one, and is paid no more for two.
func TestOneOfTwo(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(1000_000_000)
	r := request("two", 0, 10*time.Hour, cores(3))
	r.Spec.Cloudlet, r.Spec.Instances = "fra", 2
	f.must(r)
	f.pass(time.Hour)
	f.silence("dead", "fra-1")
	f.observe()
	f.pass(30 * time.Minute)
	f.wants("two", onpath.ReservationInterrupted, 2, "node fra-1 is not heard of")
	f.pass(31 * time.Minute)
	f.wants("two", onpath.ReservationActive, 1, "1 instances are left")
	if got := f.get("two").Status.Refunded; got != 27_000_000 { // nine hours of three cores
		t.Errorf("%s is credited", got)
	}
	f.checkLedger()
}

// TestRemovedNode: what a node had that the operator deleted moves or fails at once.
func TestRemovedNode(t *testing.T) {
	f := full(t)
	delete(f.nodes, "fra-1")
	f.observe()
	f.pass(time.Second)
	f.wants("a", onpath.ReservationFailed, 1, "no other of cloudlet fra has room")
	f.wants("b", onpath.ReservationActive, 1, "")
}

// TestOpenEndedInCut: an open-ended reservation pays on while it is cut off, and gets it
// back: a cut costs nothing, and does not end it for lack of money.
func TestOpenEndedInCut(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(3_500_000)
	r := request("open", 0, 0, cores(1))
	r.Spec.Cloudlet = "fra"
	f.must(r)
	f.pass(time.Hour + time.Minute)
	f.silence("", "fra-1", "fra-2")
	f.observe()
	f.pass(48 * time.Hour)
	f.wants("open", onpath.ReservationInterrupted, 1, "")
	f.hear("fra-1", "fra-2")
	f.wants("open", onpath.ReservationActive, 1, "")
	st := f.get("open").Status
	served := st.PaidUntil.Sub(start) - 48*time.Hour
	if paid := st.Paid - st.Refunded; float64(paid) < served.Hours()*1e6-100 || float64(paid) > served.Hours()*1e6+100 {
		t.Errorf("%s is paid for %s served or to be", paid, served)
	}
	f.checkLedger()
}

// TestWordsThatChange: the same lost time is credited once, however often peers change their
// word, and a server that begins again takes nothing it has not heard for a node's return.
func TestWordsThatChange(t *testing.T) {
	f := full(t)
	f.silence("", "fra-1")
	f.pass(time.Minute)
	f.observe()
	for range 10 {
		for _, says := range []string{"alive", ""} {
			n := f.nodes["fra-1"]
			n.Alive = says == "alive"
			f.nodes["fra-1"] = n
			f.observe()
			f.pass(time.Second)
		}
	}
	if got := f.get("a").Status; got.State != onpath.ReservationInterrupted || got.Refunded > 5_000+3_000_000/60*2 {
		t.Errorf("a minute and 20 seconds of silence: %s, %s credited", got.State, got.Refunded)
	}
	before := f.get("a").Status
	n := f.nodes["fra-1"]
	n.NoReport, n.Gone, n.Since = true, false, f.now
	f.nodes["fra-1"] = n
	f.restart()
	f.pass(20 * time.Second)
	if got := f.get("a").Status; got.State != before.State || got.Refunded != before.Refunded {
		t.Errorf("a server that begins again: %s (%s), %s credited", got.State, got.Reason, got.Refunded-before.Refunded)
	}
	f.hear("fra-1")
	f.checkLedger()
}

// TestDeletedNodeCreditsNothingServed: a node that was heard of until the operator deleted
// it has served all of its time.
func TestDeletedNodeCreditsNothingServed(t *testing.T) {
	for name, room := range map[string]bool{"moved": true, "given up": false} {
		f := setUp(t)
		f.prices(simple)
		f.credit(1000_000_000)
		r := request("a", 0, 10*time.Hour, cores(3))
		r.Spec.Cloudlet = "fra"
		f.must(r)
		if !room {
			other := request("b", 0, 10*time.Hour, cores(3))
			other.Spec.Cloudlet = "fra"
			f.must(other)
		}
		f.pass(9 * time.Hour)
		delete(f.nodes, f.get("a").Status.Places[0].Node)
		f.observe()
		f.pass(time.Second)
		want := onpath.Money(0)
		if !room {
			want = 3_000_000 // the tenth hour
		}
		if got := f.get("a").Status.Refunded; got < want-1000 || got > want+1000 {
			t.Errorf("%s: %s is credited, want %s", name, got, want)
		}
	}
}

// TestOffForGood: nodes that never joined, or were off long before, do not keep a dead
// machine's reservations from moving.
func TestOffForGood(t *testing.T) {
	f := setUp(t)
	f.silence("", "par-1", "lon-1")
	for _, name := range []string{"x", "y", "z"} {
		f.nodes[name] = Node{Name: name, Cloudlet: "fra", Gone: true, NoReport: true, Since: start}
	}
	f.observe()
	r := request("a", 0, 10*time.Hour, cores(3))
	r.Spec.Cloudlet = "fra"
	f.must(r)
	f.pass(time.Hour)
	f.silence("dead", "fra-1")
	f.pass(time.Minute)
	f.observe()
	f.pass(time.Second)
	if got := f.get("a").Status; got.State != onpath.ReservationActive || got.Places[0].Node != "fra-2" {
		t.Errorf("it is %s at %v", got.State, got.Places)
	}
}

// TestChangeWhileInterrupted: an interrupted reservation is changed at once; what is due of
// an instance that goes is credited.
func TestChangeWhileInterrupted(t *testing.T) {
	f := setUp(t)
	f.prices(simple)
	f.credit(1000_000_000)
	r := request("two", 0, 10*time.Hour, cores(3))
	r.Spec.Cloudlet, r.Spec.Instances = "fra", 2
	f.must(r)
	f.pass(time.Hour)
	f.deny["fra-1"] = true // it is not heard of
	f.silence("dead", "fra-1")
	f.observe()
	f.pass(20 * time.Minute)
	f.wants("two", onpath.ReservationInterrupted, 2, "")
	r.Spec.Instances = 1
	f.must(r)
	f.wants("two", onpath.ReservationActive, 1, "changed")
	if st := f.get("two").Status; st.Places[0].Node != "fra-2" || st.Refunded < 1_000_000 {
		t.Errorf("it is at %v, %s are credited and given back", st.Places, st.Refunded)
	}
	f.checkLedger()
}
