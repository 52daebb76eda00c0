package pool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/control/translog/tlogtiles"
)

// TestKilled kills the server at random instants of requests, changes and cancellations:
// every acknowledged one is there and paid once, and what the account paid is what the
// reservations that are there say. The public log continues what was signed before, and has
// each acknowledged change. ONPATH_SOAK has it killed 200 times.
func TestKilled(t *testing.T) {
	s := setUp(t)
	if _, err := s.Pool().Enter(t.Context(), onpath.DefaultTenant, onpath.MoneyEntry{Kind: onpath.PostingCredit, Amount: 1_000_000_000_000, Reference: "transfer 1"}); err != nil {
		t.Fatal(err)
	}
	kills := 10
	if os.Getenv("ONPATH_SOAK") != "" {
		kills = 200
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	h := &history{server: s, paid: map[string]onpath.Money{}, refunded: map[string]onpath.Money{}, unsure: map[string]bool{},
		changes: map[string]int{}}
	h.unforked()
	for k := range kills {
		h.round(k, time.Duration(r.IntN(60_000))*time.Microsecond)
		if t.Failed() {
			return
		}
	}
	h.logged()
	t.Logf("%d requests were acknowledged, of %d the server was killed meanwhile", h.acknowledged, h.lost)
	if h.acknowledged < kills {
		t.Error("nothing was tested")
	}
}

// history is what requesters were told.
type history struct {
	*server
	mu                 sync.Mutex
	paid, refunded     map[string]onpath.Money // by reservation, as acknowledged
	unsure             map[string]bool         // reservations of which an answer is missing
	changes            map[string]int          // to reservations, as acknowledged
	killed             bool                    // requesters end
	acknowledged, lost int

	log  tlogtiles.Reader
	seen tlog.Tree // the last that was signed
}

// round has four requesters ask until the server dies, starts it again and compares.
func (h *history) round(k int, after time.Duration) {
	begun := make(chan bool, 4)
	var wg sync.WaitGroup
	for who := range 4 {
		wg.Go(func() { h.requester(fmt.Sprintf("r%d-%d", k, who), begun) })
	}
	<-begun
	time.Sleep(after)
	h.kill(true)
	h.end(syscall.SIGKILL)
	h.start()
	wg.Wait() // clients ask again for what they had no answer to
	h.usable()
	h.compare()
	h.unforked()
	h.kill(false)
}

func (h *history) kill(is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.killed = is
}

// requester makes reservations, changes each and cancels every second one, until the server
// is killed; the last one ends when the next server has answered.
func (h *history) requester(name string, begun chan<- bool) {
	c := client.Unix(h.socket)
	defer c.Close()
	for k := 0; ; k++ {
		r := reservation(fmt.Sprintf("%s-%d", name, k), 1)
		if !h.ask(c, r) {
			return
		}
		select {
		case begun <- true:
		default:
		}
		r.Spec.Capacity.CPU = 1500
		if !h.ask(c, r) || k%2 == 0 && !h.cancel(c, r) {
			return
		}
	}
}

func reservation(name string, instances int) *onpath.Reservation {
	o, _ := onpath.New(onpath.KindReservation)
	r := o.(*onpath.Reservation)
	r.Metadata.Name = name
	from := time.Now().Add(time.Duration(1+rand.IntN(1000)) * time.Hour).UTC().Truncate(time.Second)
	r.Spec = onpath.ReservationSpec{Cloudlet: "fra", Instances: instances, From: from, Until: from.Add(time.Hour),
		Capacity: onpath.Resources{CPU: 1000, Memory: 64 << 20}}
	return r
}

func (h *history) ask(c *client.Client, r *onpath.Reservation) bool {
	return h.did(r.Metadata.Name, func() (*onpath.Quote, error) {
		a, err := c.Apply(h.t.Context(), []onpath.Object{r}, client.ApplyOptions{})
		if err != nil {
			return nil, err
		}
		return a.Changes[0].Quote, nil
	})
}

func (h *history) cancel(c *client.Client, r *onpath.Reservation) bool {
	return h.did(r.Metadata.Name, func() (*onpath.Quote, error) {
		a, err := c.Apply(h.t.Context(), nil, client.ApplyOptions{Delete: []onpath.Key{onpath.KeyOf(r)}})
		if err != nil {
			return nil, err
		}
		return a.Changes[0].Quote, nil
	})
}

// did notes what came of a request.
func (h *history) did(name string, do func() (*onpath.Quote, error)) bool {
	q, err := do()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil && !h.killed:
		h.t.Errorf("%s: %v", name, err)
		return false
	case h.killed: // asked again: it may be done already, or the next server not have its nodes yet
		h.unsure[name] = true
		h.lost++
		return false
	}
	h.acknowledged++
	h.changes[name]++
	h.paid[name] += q.Price
	h.refunded[name] += q.Refund
	return true
}

// compare holds what requesters were told against what is stored and paid.
func (h *history) compare() {
	h.t.Helper()
	list, _, err := h.List(h.t.Context(), onpath.KindReservation, onpath.DefaultTenant)
	if err != nil {
		h.t.Fatal(err)
	}
	inv, err := h.Pool().Invoice(h.t.Context(), onpath.DefaultTenant, time.Now().UTC().Format("2006-01"))
	if err != nil {
		h.t.Fatal(err)
	}
	lines := map[string]onpath.InvoiceLine{}
	for _, l := range inv.Lines {
		lines[l.Reservation] = l
	}
	there := map[string]bool{}
	for _, o := range list {
		r := o.(*onpath.Reservation)
		name, st := r.Metadata.Name, &r.Status
		there[name] = true
		if l := lines[name]; l.Charged != st.Paid || l.Refunded != st.Refunded {
			h.t.Errorf("%s was charged %s and given back %s; it says %s and %s", name, l.Charged, l.Refunded, st.Paid, st.Refunded)
		}
		if told := h.paid[name]; !h.unsure[name] && (st.Paid != told || st.Refunded != h.refunded[name]) {
			h.t.Errorf("%s paid %s and got %s back; its requester was told %s and %s", name, st.Paid, st.Refunded, told, h.refunded[name])
		}
	}
	for name := range h.paid {
		if !there[name] && !h.unsure[name] {
			h.t.Errorf("%s was acknowledged and is not there", name)
		}
	}
	for name, l := range lines {
		// What was cancelled twice, as the answer to the first time was lost, is not there.
		if !there[name] && (!h.unsure[name] || l.Refunded == 0) {
			h.t.Errorf("%s was charged %s, given back %s, and is not there", name, l.Charged, l.Refunded)
		}
	}
	check, err := h.Pool().CheckLedger(h.t.Context())
	if err != nil || len(check.Wrong) > 0 {
		h.t.Errorf("the ledger: %s %v", strings.Join(check.Wrong, "; "), err)
	}
}

// unforked holds the public log to continue what it signed before.
func (h *history) unforked() {
	h.t.Helper()
	if h.log.Verifier == nil {
		h.log.Fetch = func(path string) ([]byte, error) { return h.LogFile(h.t.Context(), path) }
		key, err := h.log.Fetch("key")
		if err == nil {
			h.log.Verifier, err = note.NewVerifier(strings.TrimSpace(string(key)))
		}
		if err != nil {
			h.t.Fatal(err)
		}
	}
	now, _, err := h.log.Checkpoint()
	if err == nil {
		err = h.log.Continues(h.seen, now)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.seen = now
}

// logged holds the public log to have all acknowledged changes, once they were signed.
func (h *history) logged() {
	h.t.Helper()
	h.await("the log to have all acknowledged changes", func(ctx context.Context) bool {
		there := map[string]int{}
		err := h.Audit(ctx, "", 100_000, func(e onpath.LoggedEntry) error {
			if name, ok := strings.CutPrefix(e.Object, "reservation "+onpath.DefaultTenant+"/"); ok && e.What == onpath.LogChange {
				there[name]++
			}
			return nil
		})
		for name, n := range h.changes {
			if there[name] < n {
				return false
			}
		}
		return err == nil
	})
	h.unforked()
	if err := h.log.Root(h.seen); err != nil {
		h.t.Error(err)
	}
}
