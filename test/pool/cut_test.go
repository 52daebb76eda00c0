package pool

import (
	"os"
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
	l := setUpLab(t)
	if _, err := l.api.Pool().Enter(t.Context(), onpath.DefaultTenant,
		onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 100 * onpath.Millionths, Reference: "transfer 1"}); err != nil {
		t.Fatal(err)
	}
	l.write("hosts", labHosts)
	r := &request{name: "paid", port: 5400, begin: time.Now().Add(5 * time.Second).Truncate(time.Millisecond)}
	r.end = r.begin.Add(75 * time.Second)
	r.slots = r.first()
	l.write("reservations", r.file())
	l.write("services", r.service())
	s := l.openStream(t, r.port)
	l.await("the chain steers", func() (bool, error) { return !l.activeSince(r.name).IsZero(), nil })
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
