package pool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// admission decides on reservations: by what is promised, stored and paid, a request and the
// time. It writes nothing, and asks nobody.
type admission struct {
	promises   *promises
	rows       *rows
	accounting *accounting
	use        func(reservation onpath.Key) Use // nil: unknown
	now        time.Time
	// touched are the reservations that the request names, and those that make room for them.
	touched map[onpath.Key]bool
}

// usedFor is what a reservation is used for.
func (a admission) usedFor(k onpath.Key) (u Use) {
	if a.use != nil {
		u = a.use(k)
	}
	return u
}

// decision is one reservation's next state, held in the calendar until it is written or
// let go.
type decision struct {
	key   onpath.Key
	old   *entry // nil: it is new
	obj   *onpath.Reservation
	pay   []payment
	quote onpath.Quote
	// moved are others' reservations that make room.
	moved []*decision
	// confirm are the nodes that promise more than before.
	confirm []string
	// same: nothing changes. gone: the object goes.
	same, gone bool
	// postings for the account, in order.
	postings []onpath.Posting
	// displacedBy is the tenant whose reservation an instance of another one makes room for.
	displacedBy string
	displacedAt time.Time
}

// Bounds are what bounds a tenant's reservations.
type Bounds struct {
	UID string // of its object; "": it needs none
	// Most is its quota of capacity; of a part that is zero it may have all there is.
	Most onpath.Resources
	// Unreserved is what its instances outside of reservations are counted as.
	Unreserved onpath.Resources
	// Objects and Bytes bound what its reservations take of the store; 0: nothing does.
	Objects int
	Bytes   onpath.Size
}

// decideWithinQuotas has something decided that grows no tenant over its quota.
func (a admission) decideWithinQuotas(bounds map[string]Bounds, puts []*onpath.Reservation,
	decide func() ([]*decision, error)) ([]*decision, error) {
	was := map[string]onpath.Resources{}
	for name, b := range bounds {
		if a.accounting.owners.removed[name] != "" && a.accounting.owners.removed[name] == b.UID {
			return nil, onpath.Errorf(onpath.CodeNotFound, "tenant %s is deleted", name)
		}
		was[name] = a.promises.reservedBy(name, a.now)
	}
	if err := a.overStored(bounds, puts); err != nil {
		return nil, err
	}
	held, err := decide()
	if err != nil {
		return nil, err
	}
	for _, r := range puts {
		k := onpath.KeyOf(r)
		if err := overQuota(k.Tenant, bounds[k.Tenant], was[k.Tenant], a.promises.reservedBy(k.Tenant, a.now)); err != nil {
			a.letDecisionsGo(held)
			return nil, about(k, err)
		}
	}
	return held, nil
}

// overStored refuses reservations that take more of the store than their tenants may.
func (a admission) overStored(bounds map[string]Bounds, puts []*onpath.Reservation) error {
	more := map[string]stored{}
	for _, r := range puts {
		k, is, was := onpath.KeyOf(r), storedOf(r), stored{}
		if e := a.rows.entries[k]; e != nil {
			was = storedOf(e.obj)
		}
		m, b, now := more[k.Tenant], bounds[k.Tenant], a.rows.stored[k.Tenant]
		m.objects, m.bytes = m.objects+is.objects-was.objects, m.bytes+max(0, is.bytes-was.bytes)
		more[k.Tenant] = m
		field := ""
		switch {
		case b.Objects > 0 && m.objects > 0 && now.objects+m.objects > b.Objects:
			field = fmt.Sprintf("objects allows %d", b.Objects)
		case b.Bytes > 0 && m.bytes > 0 && now.bytes+m.bytes > b.Bytes:
			field = fmt.Sprintf("bytes allows %s", b.Bytes)
		default:
			continue
		}
		e := onpath.Errorf(onpath.CodeNoCapacity, "declined: tenant %s would have %d reservations of about %s in the store, "+
			"those that are over included; its quota %s", k.Tenant, now.objects+m.objects, now.bytes+m.bytes, field)
		e.Remedy = "wait until those that are over leave the store, an hour after midnight (UTC), or have the operator raise spec.quota." +
			field[:strings.IndexByte(field, ' ')] + " of tenant " + k.Tenant
		return about(k, e)
	}
	return nil
}

// overQuota refuses what grows over a tenant's quota.
func overQuota(tenant string, b Bounds, was, is onpath.Resources) error {
	over := func(most, was, is, rest int64) bool { return most > 0 && is > was && is+rest > most }
	u := b.Unreserved
	var field string
	switch {
	case over(int64(b.Most.CPU), int64(was.CPU), int64(is.CPU), int64(u.CPU)):
		field = "cpu"
	case over(int64(b.Most.Memory), int64(was.Memory), int64(is.Memory), int64(u.Memory)):
		field = "memory"
	case over(int64(b.Most.Disk), int64(was.Disk), int64(is.Disk), int64(u.Disk)):
		field = "disk"
	case over(int64(b.Most.Network), int64(was.Network), int64(is.Network), int64(u.Network)):
		field = "network"
	default:
		return nil
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "declined: tenant %s would have reserved %s "+
		"at the most, beside %s of instances without reservations; its quota capacity.%s allows %s",
		tenant, amount(is), amount(u), field, amount(b.Most))
	e.Remedy = "ask for less or for another time, or have the operator raise spec.quota.capacity of tenant " + tenant
	return e
}

// decideAll decides one after the other, and holds all or nothing.
func (a admission) decideAll(puts []*onpath.Reservation, cancels []onpath.Key) (held []*decision, err error) {
	take := func(d *decision, err error) error {
		if err != nil {
			a.letDecisionsGo(held)
			return err
		}
		held = append(held, d)
		return nil
	}
	for _, k := range cancels {
		if err := take(a.cancelOne(k)); err != nil {
			return nil, err
		}
	}
	for _, r := range puts {
		if err := take(a.decideOne(r)); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// decideOne finds what becomes of a request, and holds it in the calendar.
func (a admission) decideOne(r *onpath.Reservation) (*decision, error) {
	k, now := onpath.KeyOf(r), a.now
	old := a.rows.entries[k]
	if old != nil && old.obj.Status.State.Live() {
		d, err := a.changeLive(old, r, now)
		return d, about(k, err)
	}
	d, err := a.admitNew(k, r, now)
	if d != nil && old != nil && !d.same {
		d.old = old
		identify(d.obj, old.obj)
	}
	return d, about(k, err)
}

// admitNew finds a place for a new reservation.
func (a admission) admitNew(k onpath.Key, r *onpath.Reservation, now time.Time) (*decision, error) {
	slots := slotsOf(&r.Spec, now)
	if err := notPast(&r.Spec, slots, now); err != nil {
		if old := a.rows.entries[k]; old != nil && sameRequest(old.obj, r) { // a file that is applied again
			return leftAlone(k, old), nil
		}
		return nil, err
	}
	order, notes, err := a.promises.orderCloudlets(&r.Spec)
	if err != nil {
		return nil, err
	}
	for _, cl := range order {
		nodes, fitted := a.promises.choosePlaces(cl, slots, &r.Spec)
		if nodes == nil {
			continue
		}
		d := &decision{key: k, obj: copyOf(r), confirm: nodes}
		st := &d.obj.Status
		*st = onpath.ReservationStatus{Cloudlet: cl, Slots: fitted, Notes: notes}
		for _, n := range nodes {
			st.Places = append(st.Places, onpath.ReservedPlace{Node: n})
		}
		st.Step(onpath.ReservationRequested, now, "")
		st.Step(onpath.ReservationConfirmed, now, "on "+strings.Join(unique(nodes), ", "))
		if capacityOf(fitted).Disk > 0 {
			st.Notes = append(st.Notes, "disk is counted and paid for, and limited when a node's disk is full")
		}
		if err := a.settlePayments(d, now); err != nil {
			return nil, err
		}
		d.quote = quoteOf(d, onpath.ReservationQuoted)
		if err := a.checkMaxPrice(d); err != nil {
			return nil, err
		}
		a.promises.bookPlaces(d.obj)
		return d, nil
	}
	return nil, a.promises.explainRefusal(r, slots, order)
}

// leftAlone is what becomes of a request for what is over already.
func leftAlone(k onpath.Key, e *entry) *decision {
	d := &decision{key: k, old: e, obj: e.obj, same: true}
	d.quote = quoteOf(d, e.obj.Status.State)
	note := fmt.Sprintf("it is %s and left as it is; write other times to reserve again", e.obj.Status.State)
	d.quote.Notes = append(slices.Clip(d.quote.Notes), note)
	return d
}

// notPast refuses what would begin or end before now.
func notPast(s *onpath.ReservationSpec, slots []onpath.ReservationSlot, now time.Time) error {
	refuse := func(field, remedy, format string, args ...any) error {
		e := onpath.Errorf(onpath.CodeInvalid, format, args...)
		e.Field, e.Remedy = field, remedy
		return e
	}
	if z := slots[len(slots)-1].Until; !z.IsZero() && !z.After(now) {
		return refuse("spec.until", "write a later time", "%s is past", text(z))
	}
	if !s.From.IsZero() && s.From.Before(now) {
		return refuse("spec.from", "write a later time, or leave it out to begin at once", "%s is past", text(s.From))
	}
	for i, k := range slots {
		if !k.Until.IsZero() && !k.From.Before(k.Until) {
			return refuse(fmt.Sprintf("spec.slots[%d].until", i), "write a later time",
				"%s is not after %s, where the slot begins", text(k.Until), text(k.From))
		}
	}
	return nil
}

// checkMaxPrice refuses a decision by which its reservation costs more than maxPrice: all that
// it has paid, or of an open-ended one, what is paid for an hour ahead.
func (a admission) checkMaxPrice(d *decision) error {
	st := &d.obj.Status
	limit, due := d.obj.Spec.MaxPrice, d.due()
	if !st.End().IsZero() {
		due += st.Paid - st.Refunded
	}
	if limit == nil || due <= *limit {
		return nil
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "declined: %s %s is to be paid, more than maxPrice %s", due, a.accounting.currency(), *limit)
	e.Field, e.Remedy = "spec.maxPrice", "raise it, or ask for less"
	return e
}

// holdDecision holds what d decides in the calendar, instead of what was promised before.
func (a admission) holdDecision(d *decision) {
	if d.old != nil {
		a.promises.freePlaces(d.old.obj)
	}
	a.promises.bookPlaces(d.obj)
}

// letDecisionsGo takes decisions back, the last first.
func (a admission) letDecisionsGo(held []*decision) {
	for i := len(held) - 1; i >= 0; i-- {
		d := held[i]
		if d.same || d.gone {
			continue
		}
		a.promises.freePlaces(d.obj)
		if d.old != nil {
			a.promises.bookPlaces(d.old.obj)
		}
		a.promises.displaced.takeBack(d)
		a.letDecisionsGo(d.moved)
	}
}

// flat are decisions with those that make room for them.
func flat(held []*decision) (out []*decision) {
	for _, d := range held {
		out = append(out, d.moved...)
		if !d.same {
			out = append(out, d)
		}
	}
	return out
}

func quoteOf(d *decision, state onpath.ReservationState) onpath.Quote {
	st := &d.obj.Status
	return onpath.Quote{Reservation: d.key.Tenant + "/" + d.key.Name, State: state, Reason: st.Reason,
		Cloudlet: st.Cloudlet, Places: st.Places, Notes: st.Notes}
}

func capacityOf(slots []onpath.ReservationSlot) (most onpath.Resources) {
	for _, s := range slots {
		most.Disk = max(most.Disk, s.Capacity.Disk)
	}
	return most
}

func unique(list []string) []string {
	s := slices.Clone(list)
	slices.Sort(s)
	return slices.Compact(s)
}

func text(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func about(k onpath.Key, err error) error {
	var e *onpath.Error
	if errors.As(err, &e) && e.Object == "" {
		c := *e
		c.Object = k.String()
		return &c
	}
	return err
}
