package pool

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// controlCut is a second longer than a server waits before it takes a node for gone.
const controlCut = 31 * time.Second

// TestControlCut: the server hears of no node for 31 s. The instance of a paid reservation goes
// on serving without a lost packet, on its node and under its name; the reservation is
// interrupted at most, ends by its own time, and what is not known to be delivered is credited.
func TestControlCut(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; this takes a minute and a half")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces, eBPF and containers")
	}
	l, r, s := servePaid(t, 75*time.Second)
	link, err := l.Lab.FindLink("server:underlay")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Lab.Cut(link, controlCut); err != nil {
		t.Fatal(err)
	}
	var missing sync.WaitGroup
	missing.Go(func() { l.await("the server misses its nodes", l.nodesReady(0)) })
	lost, sent := s.run(t, int64(small.Network)*80/100, time.Now().Add(controlCut+5*time.Second))
	missing.Wait()
	if sent == 0 || lost != 0 {
		t.Errorf("%d of %d datagrams were lost", lost, sent)
	}
	l.await("the nodes are back", l.nodesReady(5))
	l.await("it is active", func() (bool, error) { return l.reservation(r.name).Status.State == onpath.ReservationActive, nil })
	st := l.reservation(r.name).Status
	t.Logf("paid %s, credited %s; %+v", st.Paid, st.Refunded, st.Steps)
	for name, i := range l.of(r.name) {
		if !i.gone.IsZero() || len(l.of(r.name)) != 1 || len(st.Places) != 1 || st.Places[0].Node != i.node {
			t.Errorf("instance %s of node %s is gone since %s; the reservation is at %+v", name, i.node, i.gone, st.Places)
		}
	}
	for _, step := range st.Steps {
		if !step.State.Live() && step.State != onpath.ReservationRequested {
			t.Errorf("it was %s: %s", step.State, step.Reason)
		}
	}
	time.Sleep(time.Until(r.end))
	l.await("it has ended", func() (bool, error) { return l.reservation(r.name).Status.State == onpath.ReservationEnded, nil })
	if st := l.reservation(r.name).Status; st.Refunded > cost([]onpath.ReservationSlot{{Until: time.Time{}.Add(controlCut + 10*time.Second), Capacity: small}}) {
		t.Errorf("%s of %s is credited for a cut of %s", st.Refunded, st.Paid, controlCut)
	}
	check, err := l.api.Pool().CheckLedger(t.Context())
	if err != nil || len(check.Wrong) > 0 {
		t.Errorf("the ledger: %v %v", check.Wrong, err)
	}
}

// servePaid has a paid reservation serve in the laboratory for a time.
func servePaid(t *testing.T, d time.Duration) (*laboratory, *request, *stream) {
	t.Helper()
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; this takes a minute and a half")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces, eBPF and containers")
	}
	l := setUpLab(t)
	if _, err := l.api.Pool().Enter(t.Context(), onpath.DefaultTenant,
		onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 100 * onpath.Millionths, Reference: "transfer 1"}); err != nil {
		t.Fatal(err)
	}
	l.write("hosts", labHosts)
	r := &request{name: "paid", port: 5400, begin: time.Now().Add(5 * time.Second).Truncate(time.Millisecond)}
	r.end = r.begin.Add(d)
	r.slots = r.first()
	l.write("reservations", r.file())
	l.write("services", r.service())
	s := l.openStream(t, r.port)
	l.await("the chain steers", func() (bool, error) { return !l.activeSince(r.name).IsZero(), nil })
	return l, r, s
}

// TestDrainReserved: onpath drain moves the instance of a reservation that serves, without a lost
// packet, and the Node can be deleted only then.
func TestDrainReserved(t *testing.T) {
	l, r, s := servePaid(t, 60*time.Second)
	from := l.reservation(r.name).Status.Places[0].Node
	if out, err := l.Onpath(t.Context(), "delete", "node", from); err == nil || !strings.Contains(string(out)+err.Error(), "reservations have its room") {
		t.Errorf("its Node can be deleted: %s %v", out, err)
	}
	var draining sync.WaitGroup
	draining.Go(func() {
		time.Sleep(2 * time.Second)
		if out, err := l.Onpath(t.Context(), "drain", from); err != nil {
			t.Errorf("drain: %s %v", out, err)
		}
	})
	lost, sent := s.run(t, int64(small.Network)*80/100, time.Now().Add(25*time.Second))
	draining.Wait()
	if sent == 0 || lost != 0 {
		t.Errorf("%d of %d datagrams were lost", lost, sent)
	}
	l.await("the instance is gone from the node", func() (bool, error) {
		for _, i := range l.of(r.name) {
			if i.node == from && i.gone.IsZero() {
				return false, nil
			}
		}
		return true, nil
	})
	st := l.reservation(r.name).Status
	if len(st.Places) != 1 || st.Places[0].Node == from || st.State != onpath.ReservationActive || st.Refunded != 0 {
		t.Errorf("it is %s at %+v, %s is credited", st.State, st.Places, st.Refunded)
	}
}

// nodesReady reports whether the server takes so many nodes for ready.
func (l *laboratory) nodesReady(n int) func() (bool, error) {
	return func() (bool, error) {
		list, _, err := l.api.List(l.t.Context(), onpath.KindNode, "")
		ready := 0
		for _, o := range list {
			if o.(*onpath.Node).Status.Ready {
				ready++
			}
		}
		return ready == n, err
	}
}
