package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/plan/near"
)

// errNoConfirm is why a decision is taken again: a node did not confirm.
var errNoConfirm = onpath.Errorf(onpath.CodeUnavailable, "no node confirms what the calendar says it has")

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
	// asks are the nodes that promise more than before.
	asks []string
	// same: nothing changes. gone: the object goes.
	same, gone bool
	// postings for the account, in order.
	postings []onpath.Posting
	// displacedBy is the tenant whose reservation an instance of another one makes room for.
	displacedBy string
	displacedAt time.Time
}

// Apply admits, changes or cancels reservations, all or none; those that are as they are
// asked to be are left alone. With dryRun it only says what it would do. The error's code
// is CodeNoCapacity where the pool declines.
func (p *Pool) Apply(ctx context.Context, puts []*onpath.Reservation, cancels []onpath.Key, dryRun bool) ([]onpath.Quote, error) {
	rest, over, err := p.past.leave(ctx, puts)
	if err != nil {
		return nil, err
	}
	for begin := time.Now(); ; {
		list, err := p.priceList.listFor(ctx, dryRun)
		if err != nil {
			return nil, err
		}
		bounds, err := p.boundsOf(ctx, rest)
		if err != nil {
			return nil, err
		}
		quotes, err := p.tryApply(ctx, list, bounds, rest, cancels, dryRun)
		again := errors.Is(err, errNoConfirm) || errors.Is(err, errAgain)
		if err != nil && !again { // by a list that may be out of force
			latest, readErr := p.priceList.readPrices(ctx)
			again = readErr == nil && latest.version != list.version
		}
		if again && time.Since(begin) <= tryTimeout {
			continue
		}
		for i := range puts {
			if q, ok := over[i]; ok && err == nil {
				quotes = slices.Insert(quotes, len(cancels)+i, q)
			}
		}
		return quotes, err
	}
}

// tryTimeout is how long decisions are taken again at most.
const tryTimeout = 10 * time.Second

func (p *Pool) tryApply(ctx context.Context, prices prices, bounds map[string]Bounds, puts []*onpath.Reservation,
	cancels []onpath.Key, dryRun bool) (quotes []onpath.Quote, err error) {
	h, err := p.hold(append(keysOf(puts), cancels...), func(a admission) ([]*decision, error) {
		a.accounting.usePrices(prices)
		return a.decideWithinQuotas(bounds, puts, func() ([]*decision, error) { return a.decideAll(puts, cancels) })
	})
	if err != nil {
		return nil, err
	}
	refused := p.askNodes(ctx, h.asks)
	err = p.queue.commit(ctx, func(s *state) (j joining, err error) {
		if err := s.stillHeld(h, refused); err != nil {
			return j, err
		}
		all, books, err := s.accounting.chargeAll(h.decisions)
		if quotes = all; err != nil || dryRun {
			s.admission().letDecisionsGo(h.decisions)
			return j, err
		}
		for i, d := range h.decisions {
			quotes[i].State = d.obj.Status.State
		}
		return joining{held: h.decisions, books: books, priced: true, list: prices.version}, nil
	})
	if err != nil {
		return nil, err
	}
	return quotes, nil
}

func keysOf(list []*onpath.Reservation) (out []onpath.Key) {
	for _, r := range list {
		out = append(out, onpath.KeyOf(r))
	}
	return out
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

// chargeAll has the tenants' accounts pay.
func (ac *accounting) chargeAll(held []*decision) (quotes []onpath.Quote, books map[string]*ledger.Book, err error) {
	books = map[string]*ledger.Book{}
	for _, d := range held {
		if err := ac.chargeDecision(books, d); err != nil {
			return nil, nil, about(d.key, err)
		}
		quotes = append(quotes, d.quote)
	}
	return quotes, books, nil
}

func about(k onpath.Key, err error) error {
	var e *onpath.Error
	if errors.As(err, &e) && e.Object == "" {
		c := *e
		c.Object = k.String()
		return &c
	}
	return err
}

// held are decisions that are held in the calendar while nodes are asked: nobody else can
// sell that meanwhile.
type held struct {
	decisions []*decision
	asks      map[string]onpath.PromiseRequest // of nodes that promise more than before
	loads     int
}

// hold has something decided on reservations of which nothing is being written.
func (p *Pool) hold(keys []onpath.Key, decide func(admission) ([]*decision, error)) (h held, err error) {
	if err := p.Held(); err != nil {
		return h, err
	}
	p.queue.observe()
	p.queue.look(func(s *state) {
		if err = s.ready(); err != nil {
			return
		}
		h.loads = s.loads
		if h.decisions, err = decide(s.admission()); err == nil {
			h.asks = s.promises.requestsOf(h.decisions, s.clock())
		}
	}, keys...)
	return h, err
}

// askNodes asks nodes whether they keep what they will have promised, and names those that do
// not say so.
func (p *Pool) askNodes(ctx context.Context, asks map[string]onpath.PromiseRequest) (refused []string) {
	if len(asks) == 0 || p.o.Confirm == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	type answer struct {
		node string
		err  error
	}
	answers := make(chan answer, len(asks))
	for name, r := range asks {
		go func() { answers <- answer{name, p.o.Confirm(ctx, name, r)} }()
	}
	for range asks {
		if a := <-answers; a.err != nil {
			p.log.Warn("a node does not confirm a reservation", "node", a.node, "err", a.err)
			refused = append(refused, a.node)
		}
	}
	return refused
}

// stillHeld lets decisions go that a node did not confirm, or that somebody else has overtaken.
// A node that did not confirm is not asked again for a while.
func (s *state) stillHeld(h held, refused []string) error {
	for _, name := range refused {
		s.promises.refuse(name, s.clock())
	}
	switch {
	case s.loads != h.loads: // nothing is held any more
		for _, d := range flat(h.decisions) {
			s.promises.displaced.takeBack(d)
		}
		return errAgain
	case len(refused) > 0:
		s.admission().letDecisionsGo(h.decisions)
		return errNoConfirm
	case s.broken || slices.ContainsFunc(h.decisions, s.rows.isOvertaken):
		s.admission().letDecisionsGo(h.decisions)
		return errAgain
	}
	return nil
}

// confirmTimeout bounds how long a node may take to confirm.
const confirmTimeout = 2 * time.Second

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
		d := &decision{key: k, obj: copyOf(r), asks: nodes}
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

func text(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// choosePlaces chooses nodes of a cloudlet; nil: not all instances fit.
func (p *promises) choosePlaces(cloudlet string, slots []onpath.ReservationSlot, s *onpath.ReservationSpec) ([]string, []onpath.ReservationSlot) {
	if s.Nodes == 0 {
		return p.cal.Place(cloudlet, whole(slots), s.Instances, false), slots
	}
	rooms := map[onpath.Resources][]string{} // free machines by what they have
	for _, name := range p.cal.Nodes(cloudlet) {
		room, _, usable := p.cal.Room(name)
		n := p.nodes[name]
		if usable && n.Taken == (onpath.Resources{}) && p.cal.Peak(name, slots[0].From, end(slots[0].Until)) == (onpath.Resources{}) {
			rooms[room] = append(rooms[room], name)
		}
	}
	for _, name := range p.cal.Nodes(cloudlet) { // in order
		room, _, _ := p.cal.Room(name)
		if list := rooms[room]; len(list) >= s.Nodes {
			fitted := slices.Clone(slots)
			fitted[0].Capacity = room
			return list[:s.Nodes], fitted
		}
	}
	return nil, nil
}

// orderCloudlets are the cloudlets where a request may go, the nearest first.
func (p *promises) orderCloudlets(s *onpath.ReservationSpec) (order, notes []string, err error) {
	refuse := func(field, remedy, format string, args ...any) error {
		e := onpath.Errorf(onpath.CodeInvalid, format, args...)
		e.Field, e.Remedy = field, remedy
		return e
	}
	if s.Cloudlet != "" {
		if _, ok := p.cloudlets[s.Cloudlet]; !ok {
			return nil, nil, refuse("spec.cloudlet", "write one of "+strings.Join(sortedKeys(p.cloudlets), ", "),
				"there is no cloudlet %s", s.Cloudlet)
		}
		return []string{s.Cloudlet}, nil, nil
	}
	if !s.Near.IsValid() {
		return sortedKeys(p.cloudlets), nil, nil
	}
	home := p.distances().Home(s.Near.Prefix)
	if home == "" {
		return nil, nil, refuse("spec.near",
			"write cloudlet instead, or have the operator write spec.prefixes of the cloudlet",
			"no cloudlet says that users with %s are near it", s.Near)
	}
	return p.orderFrom(home), []string{fmt.Sprintf("%s is near cloudlet %s; the others by round trips and locations", s.Near, home)}, nil
}

// orderFrom are all cloudlets by their distance from one; kept, as it takes longer than the rest
// of a decision.
func (p *promises) orderFrom(home string) []string {
	if order := p.orders[home]; order != nil {
		return order
	}
	order := p.distances().Order(home)
	if p.orders == nil {
		p.orders = map[string][]string{}
	}
	p.orders[home] = order
	return order
}

// distances are the cloudlets by what tells near from far; kept, as they are most of what a
// decision would allocate.
func (p *promises) distances() near.Map {
	if p.near == nil {
		p.near = make(near.Map, len(p.cloudlets))
		for name, cl := range p.cloudlets {
			p.near[name] = near.Cloudlet{Location: cl.Location, Prefixes: cl.Prefixes, RTT: cl.RTT}
		}
	}
	return p.near
}

// explainRefusal says what is lacking where, and from when it would fit.
func (p *promises) explainRefusal(r *onpath.Reservation, slots []onpath.ReservationSlot, order []string) error {
	var lacks []string
	s := &r.Spec
	for _, cl := range order {
		if len(lacks) == 5 {
			lacks = append(lacks, fmt.Sprintf("and %d more cloudlets", len(order)-5))
			break
		}
		lacks = append(lacks, p.findLack(cl, slots, s))
	}
	if len(order) == 0 {
		lacks = []string{"there is no cloudlet"}
	}
	e := onpath.Errorf(onpath.CodeNoCapacity, "declined: %s", strings.Join(lacks, "; "))
	e.Remedy = "ask for less, for another time or elsewhere"
	if s.Nodes > 0 {
		return e
	}
	if later, ok := p.cal.Earliest(order, whole(slots), s.Instances, false); ok && later > 0 {
		at := slots[0].From.Add(later)
		e.Remedy = fmt.Sprintf("it would fit from %s on (%s later)", text(at), later.Round(time.Millisecond))
	}
	return e
}

// findLack is why one more instance does not fit into a cloudlet: of the node that lacks
// least at the first instant where it does.
func (p *promises) findLack(cloudlet string, slots []onpath.ReservationSlot, s *onpath.ReservationSpec) string {
	if s.Nodes > 0 {
		return fmt.Sprintf("cloudlet %s has not %d equal machines of which nothing is promised then", cloudlet, s.Nodes)
	}
	names := p.cal.Nodes(cloudlet)
	if len(names) == 0 {
		return fmt.Sprintf("cloudlet %s has no nodes", cloudlet)
	}
	var away int
	best, bestNode, bestAt := onpath.Resources{}, "", time.Time{}
	for _, name := range names {
		if _, _, usable := p.cal.Room(name); !usable {
			away++
			continue
		}
		at, lack := p.cal.Lack(name, whole(slots))
		if lack == (onpath.Resources{}) {
			continue // it fits there, but not as often as asked for
		}
		if bestNode == "" || best.CPU > lack.CPU || best.CPU == lack.CPU && best.Memory > lack.Memory {
			best, bestNode, bestAt = lack, name, at
		}
	}
	switch {
	case bestNode == "" && away == len(names):
		return fmt.Sprintf("no node of cloudlet %s is ready", cloudlet)
	case bestNode == "":
		return fmt.Sprintf("cloudlet %s has no room for all %d instances together", cloudlet, s.Instances)
	}
	return fmt.Sprintf("in cloudlet %s node %s lacks %s at %s", cloudlet, bestNode, parts(best), text(bestAt))
}

// parts names the parts of r that are not zero.
func parts(r onpath.Resources) string {
	var out []string
	if r.CPU > 0 {
		out = append(out, r.CPU.String()+" of CPU")
	}
	if r.Memory > 0 {
		out = append(out, r.Memory.Rounded()+" of memory")
	}
	if r.Disk > 0 {
		out = append(out, r.Disk.Rounded()+" of disk")
	}
	if r.Network > 0 {
		out = append(out, r.Network.Rounded()+" of network")
	}
	return strings.Join(out, " and ")
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

func (ac *accounting) currency() string {
	if ac.prices.spec == nil {
		return ""
	}
	return ac.prices.spec.Currency
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

func quoteOf(d *decision, state onpath.ReservationState) onpath.Quote {
	st := &d.obj.Status
	return onpath.Quote{Reservation: d.key.Tenant + "/" + d.key.Name, State: state, Reason: st.Reason,
		Cloudlet: st.Cloudlet, Places: st.Places, Notes: st.Notes}
}
