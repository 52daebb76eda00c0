package pool

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
)

// billed is how far an instance's meter is paid for. It is written in the transaction of
// the posting, so that nothing is billed twice or left out.
type billed struct {
	At    time.Time     `json:"at"`
	CPU   time.Duration `json:"cpu"`
	Bytes uint64        `json:"bytes"`
	// Of is whose meter it is; of marks of earlier versions nothing is known.
	Of Placed `json:"of,omitzero"`

	version int64
}

// Placed is an instance as the server placed it: what its node says of that does not count.
type Placed struct {
	Node        string    `json:"node"`
	Tenant      string    `json:"tenant"`
	Instance    string    `json:"instance"`
	Reservation string    `json:"reservation,omitempty"`
	Created     time.Time `json:"created"`
}

const meterPath = "pool/meter/"

// atOnce is how many meters one transaction bills.
const atOnce = 40

// Bill charges tenants for what their instances on a node have used since they were billed
// last, by the price list of now; what was used while nothing was charged for use stays free.
// placed says whose the meters are, by UID; of one that is not in it what was noted when it was
// billed last counts. It returns the UIDs of those that are gone and billed, or are none of the
// node's: it may forget them.
func (p *Pool) Bill(ctx context.Context, node string, meters []onpath.Meter, placed map[string]Placed) (gone []string, err error) {
	list, err := p.priceList.readPrices(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Held(); err != nil {
		return nil, err
	}
	p.queue.look(func(s *state) {
		if err = s.ready(); err == nil {
			meters, gone = s.accounting.believedMeters(node, meters, placed)
		}
	})
	if err != nil {
		return nil, err
	}
	for part := range slices.Chunk(meters, atOnce) {
		err := p.queue.commit(ctx, func(s *state) (joining, error) {
			s.accounting.usePrices(list)
			return s.accounting.billMeters(node, part, s.clock())
		})
		if err != nil {
			return gone, err
		}
		for _, m := range part {
			if m.Gone {
				gone = append(gone, m.UID)
			}
		}
	}
	return gone, nil
}

// believedMeters are a node's meters, each once, with what the server knows of their instances, and
// the UIDs of those that are gone and none of its.
func (ac *accounting) believedMeters(node string, meters []onpath.Meter, placed map[string]Placed) (out []onpath.Meter, others []string) {
	seen := map[string]bool{}
	for _, m := range meters {
		of, ok := placed[m.UID]
		if !ok {
			of = ac.billed[m.UID].Of
		}
		switch {
		case seen[m.UID]:
		case of.Node == node:
			m.Tenant, m.Instance, m.Reservation = of.Tenant, of.Instance, of.Reservation
			if m.Began.Before(of.Created) {
				m.Began = of.Created
			}
			out = append(out, m)
		default:
			ac.log.Warn("a node meters an instance that it has not, as far as is known: nobody pays for that", "node", node, "uid", m.UID)
			if m.Gone {
				others = append(others, m.UID)
			}
		}
		seen[m.UID] = true
	}
	return out, others
}

// billMeters is what is written to bill what instances used.
func (ac *accounting) billMeters(node string, meters []onpath.Meter, now time.Time) (j joining, err error) {
	books, next := map[string]*ledger.Book{}, map[string]billed{}
	for _, m := range meters {
		was := ac.billed[m.UID]
		if was.CPU == m.CPU && was.Bytes == m.Bytes && was.Of.Node == node {
			continue
		}
		of := Placed{Node: node, Tenant: m.Tenant, Instance: m.Instance, Reservation: m.Reservation, Created: m.Began}
		next[m.UID] = billed{At: now, CPU: max(m.CPU, 0), Bytes: m.Bytes, Of: of, version: was.version}
		if ac.prices.spec == nil || m.CPU < was.CPU || m.Bytes < was.Bytes { // a node made anew begins anew
			continue
		}
		name := ac.owners.account(m.Tenant, m.Began) // of the tenant that had it, though another has the name now
		if books[name] == nil {
			books[name] = ac.openBook(name)
		}
		if err := ac.chargeUse(books[name], &m, was, now); err != nil { // others' use is billed all the same
			ac.log.Error("what an instance used is not billed", "tenant", m.Tenant, "instance", m.Instance, "err", err)
		}
	}
	if len(next) == 0 {
		return j, nil
	}
	j = joining{books: books, priced: len(books) > 0, list: ac.prices.version, written: func(revision int64) {
		for uid, x := range next {
			x.version = revision
			ac.billed[uid] = x
		}
	}}
	for _, uid := range sortedKeys(next) {
		v, err := json.Marshal(next[uid])
		if err != nil {
			return j, err
		}
		j.records = append(j.records, onpath.Record{Path: meterPath + uid, Value: v, Version: next[uid].version})
	}
	return j, nil
}

func (ac *accounting) chargeUse(b *ledger.Book, m *onpath.Meter, was billed, now time.Time) error {
	from := was.At
	if from.IsZero() {
		from = m.Began
	}
	x := onpath.Posting{Kind: onpath.PostingUse, Cause: fmt.Sprintf("use of instance %s", m.Instance),
		Reservation: m.Reservation, Instance: m.Instance, Prices: ac.prices.version,
		From: from, Until: now, CPU: m.CPU - was.CPU, Bytes: m.Bytes - was.Bytes}
	if !plausible(&x) {
		return onpath.Errorf(onpath.CodeInvalid, "instance %s is said to have used %s of processor time and %d bytes since %s",
			m.Instance, x.CPU, x.Bytes, text(from))
	}
	var err error
	if x.Amount, err = ledger.Amount(&x, ac.prices.spec); err != nil {
		return onpath.Errorf(onpath.CodeInvalid, "the use of instance %s cannot be billed: %w", m.Instance, err)
	}
	return b.Add(now, x)
}

// What no machine can do is a mistake of its node: nobody pays for that.
const (
	mostCores = 4096
	mostBytes = 1_000_000_000_000 // a second
)

func plausible(x *onpath.Posting) bool {
	seconds := int64(max(x.Until.Sub(x.From), 0)/time.Second) + 60 // as clocks differ
	return int64(x.CPU/(mostCores*time.Second)) <= seconds && x.Bytes/mostBytes <= uint64(seconds)
}

// Forget drops how far instances of a node are billed that it has forgotten.
func (p *Pool) Forget(ctx context.Context, node string, uids []string) error {
	for part := range slices.Chunk(uids, atOnce) {
		err := p.queue.commit(ctx, func(s *state) (joining, error) { return s.accounting.dropMeters(node, part), nil })
		if err != nil {
			return err
		}
	}
	return nil
}

// dropMeters is what is written to forget how far meters of a node are paid for.
func (ac *accounting) dropMeters(node string, uids []string) (j joining) {
	uids = slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return ac.billed[uid].Of.Node != node })
	j.written = func(int64) {
		for _, uid := range uids {
			delete(ac.billed, uid)
		}
	}
	for _, uid := range uids {
		if ac.billed[uid].version != 0 {
			j.records = append(j.records, onpath.Record{Path: meterPath + uid, Version: onpath.AnyVersion, Delete: true})
		}
	}
	return j
}

// loadBilled reads how far meters are paid for.
func (q *queue) loadBilled(ctx context.Context) error {
	return q.read.records(ctx, meterPath, func(r onpath.Record, uid string) error {
		x := billed{version: r.Version}
		err := json.Unmarshal(r.Value, &x)
		q.state.accounting.billed[uid] = x
		return err
	})
}
