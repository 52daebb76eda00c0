package pool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/archive"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/store"
)

// Past is the days that are closed: their postings and the reservations that were over are in
// files, and the store keeps nothing of them but balances.
type Past struct {
	queue  *queue
	watch  *watch
	log    *slog.Logger
	tell   func(about onpath.Key, reason, message string, warning bool)
	read   *postingReader
	folder *archive.Folder // nil: no day is ever closed

	closing sync.Mutex // one day at a time

	files atomic.Pointer[[]archive.Day] // closed days as they were read last

	mu    sync.Mutex
	ended map[string]archive.Day // days' files of reservations, by TENANT/NAME: the latest
	known string                 // the newest day that was looked at
	// unread are days whose files could not be read when it was tried last.
	unread []archive.Day
	tried  time.Time
}

// tryAgain is how often files that could not be read are tried again.
const tryAgain = time.Minute

// shown is for how many days reservations that are over are found by their names.
const shown = 400

func dayPath(day string) string { return ledger.Days + day }

func carriedPath(tenant string) string { return ledger.Balances + tenant }

// keyOf is the key of a reservation by TENANT/NAME.
func keyOf(name string) onpath.Key {
	tenant, name, _ := strings.Cut(name, "/")
	return onpath.Key{Kind: onpath.KindReservation, Tenant: tenant, Name: name}
}

// days are the closed ones as of a revision, the first one first; 0: of the newest.
func (p *Past) days(ctx context.Context, revision int64) (out []archive.Day, err error) {
	err = p.read.recordsAt(ctx, ledger.Days, revision, func(r onpath.Record, _ string) error {
		var d archive.Day
		err := json.Unmarshal(r.Value, &d)
		out = append(out, d)
		return err
	})
	return out, err
}

// carried is what is carried forward of a tenant, with the version of its record and the
// revision as of which it was read.
func (p *Past) carried(ctx context.Context, tenant string, at int64) (x ledger.Carried, version, revision int64, err error) {
	path := carriedPath(tenant)
	page, err := p.read.store.Records(ctx, onpath.RecordRange{From: path, To: path + "\x00", Revision: at})
	if err != nil || len(page.Records) == 0 {
		return x, 0, page.Revision, err
	}
	return x, page.Records[0].Version, page.Revision, json.Unmarshal(page.Records[0].Value, &x)
}

// postings are those of a tenant from a number on that files have, as many as a page may hold;
// x is what is carried forward, and has that number. limit 0: as files give.
func (p *Past) postings(ctx context.Context, x ledger.Carried, from int64, limit int, revision int64) (onpath.PostingPage, error) {
	days, err := p.through(ctx, x.Day, revision)
	if err != nil {
		return onpath.PostingPage{}, err
	}
	page := onpath.PostingPage{Next: from}
	for page.Next <= x.Number && len(page.Postings) < cmp.Or(limit, onpath.MaxPostings) {
		d, err := p.folder.Find(days, x.Tenant, page.Next)
		var list []onpath.Posting
		if err == nil && d != nil {
			list, err = p.folder.Postings(*d, x.Tenant, page.Next, max(0, limit-len(page.Postings)))
		}
		if err == nil && len(list) == 0 {
			err = onpath.Errorf(onpath.CodeInternal,
				"posting %d of tenant %s is in the file of no day: see onpath ledger check", page.Next, x.Tenant)
		}
		if err != nil {
			return onpath.PostingPage{}, err
		}
		page.Postings, page.Next = append(page.Postings, list...), page.Next+int64(len(list))
	}
	return page, nil
}

// through are the closed days up to one that has a record as of a revision. The names and the
// hashes of their files never change, so the records are read when newer days are asked for.
func (p *Past) through(ctx context.Context, day string, revision int64) ([]archive.Day, error) {
	var days []archive.Day
	if kept := p.files.Load(); kept != nil {
		days = *kept
	}
	if n := len(days); n == 0 || days[n-1].Day < day {
		var err error
		if days, err = p.days(ctx, revision); err != nil {
			return nil, err
		}
		p.files.Store(&days)
	}
	n, _ := slices.BinarySearchFunc(days, day+"\x00", func(d archive.Day, day string) int { return strings.Compare(d.Day, day) })
	days = days[:n]
	if p.folder != nil {
		return days, nil
	}
	last := archive.Day{LedgerDay: onpath.LedgerDay{Day: day, File: "a file"}}
	if n > 0 {
		last = days[n-1]
	}
	return nil, noFolder(last)
}

// reservation is one that is over and whose day is closed; nil: there is none of that name.
func (p *Past) reservation(ctx context.Context, k onpath.Key, now time.Time) (*onpath.Reservation, error) {
	if p.folder == nil || k.Kind != onpath.KindReservation {
		return nil, nil
	}
	name := k.Tenant + "/" + k.Name
	d, ok, err := p.dayOf(ctx, name, now)
	if err != nil || !ok {
		return nil, err
	}
	return p.folder.Reservation(d, name)
}

// dayOf is the day whose file has a reservation, by TENANT/NAME.
func (p *Past) dayOf(ctx context.Context, name string, now time.Time) (d archive.Day, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	err = p.readEnded(ctx, now)
	d, ok = p.ended[name]
	return d, ok, err
}

// readEnded notes which reservations the days closed since hold. A file that cannot be read is told
// once, and tried again. Needs mu.
func (p *Past) readEnded(ctx context.Context, now time.Time) error {
	from := max(p.known, now.AddDate(0, 0, -shown).Format(time.DateOnly))
	at := onpath.RecordsUnder(ledger.Days)
	at.From = dayPath(from) + "\x00"
	page, err := p.read.store.Records(ctx, at)
	if err != nil {
		return err
	}
	var list []archive.Day
	for _, r := range page.Records {
		var d archive.Day
		if err := json.Unmarshal(r.Value, &d); err != nil {
			return err
		}
		if p.known = d.Day; d.Reservations > 0 {
			list = append(list, d)
		}
	}
	if unread, err := p.noteEnded(list); err != nil {
		p.unread, p.tried = append(p.unread, unread...), now
		p.log.Error("reservations of closed days are not found by their names", "days", len(unread), "err", err)
		p.tell(onpath.Key{Kind: onpath.KindTenant, Name: onpath.OperatorTenant}, "LedgerDayUnreadable",
			fmt.Sprintf("reservations of %s are not found by their names: %v", someDays(unread), err), true)
	} else if len(p.unread) > 0 && now.Sub(p.tried).Abs() >= tryAgain {
		p.unread, _ = p.noteEnded(p.unread)
		p.tried = now
	}
	return nil
}

// noteEnded notes the reservations of days, and gives the days whose files cannot be read, with the
// error of the first one. Needs mu.
func (p *Past) noteEnded(days []archive.Day) (unread []archive.Day, first error) {
	if p.ended == nil {
		p.ended = map[string]archive.Day{}
	}
	for _, d := range days {
		h, err := p.folder.Head(d)
		if err != nil {
			unread, first = append(unread, d), cmp.Or(first, err)
			continue
		}
		for _, x := range h.Reservations {
			if p.ended[x.Name].Day < d.Day {
				p.ended[x.Name] = d
			}
		}
	}
	return unread, first
}

func someDays(days []archive.Day) string {
	if n := len(days); n > 1 {
		return fmt.Sprintf("%d closed days since %s", n, days[0].Day)
	}
	return "the closed day " + days[0].Day
}

// doubt says why a reservation may be one of a closed day though no file that can be read has it;
// "": it is none.
func (p *Past) doubt() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unread) == 0 {
		return ""
	}
	return "it may be in a file that cannot be read, of " + someDays(p.unread)
}

// Ended is a reservation that is over, of a day that is closed. CodeNotFound: there is none of
// that name, or it was a former tenant's.
func (p *Past) Ended(ctx context.Context, k onpath.Key) (*onpath.Reservation, error) {
	r, err := p.reservation(ctx, k, p.now())
	if err != nil {
		return nil, err
	}
	var former []time.Time
	p.queue.look(func(s *state) { former = s.accounting.owners.former[k.Tenant] })
	if r == nil || len(former) > 0 && r.Metadata.Created.Before(former[len(former)-1]) {
		return nil, withDoubt(store.NotFound(k), k, p.doubt())
	}
	return r, nil
}

// withDoubt adds to an error about a reservation what is not known of it.
func withDoubt(err error, k onpath.Key, doubt string) error {
	var e *onpath.Error
	if doubt == "" || !errors.As(err, &e) || e.Object != k.String() {
		return err
	}
	c := *e
	c.Message += "; " + doubt
	c.Remedy += "; onpath ledger days shows operators which files are missing"
	return &c
}

// splitEnded takes out of requests those that a file asks for again and whose day is closed. It
// gives the rest, and the answers to the others by their places. What cannot be known, as a file
// cannot be read, is of the rest and in doubts.
func (p *Past) splitEnded(ctx context.Context, puts []demand) (rest []demand, over map[int]onpath.Quote,
	doubts map[onpath.Key]string, err error) {
	over, doubts = map[int]onpath.Quote{}, map[onpath.Key]string{}
	for i, r := range puts {
		k := r.key
		if r.readTerms(nil, p.now()).refused == nil || p.queue.exists(k) {
			rest = append(rest, r)
			continue
		}
		switch old, err := p.Ended(ctx, k); {
		case err == nil && sameRequest(old, r.obj):
			over[i] = leftAlone(&entry{key: k, obj: old}).quote
		case err == nil || onpath.CodeOf(err) == onpath.CodeNotFound:
			if rest = append(rest, r); err != nil {
				doubts[k] = p.doubt()
			}
		case onpath.CodeOf(err) == onpath.CodeUnavailable || onpath.CodeOf(err) == onpath.CodeInvalid:
			rest, doubts[k] = append(rest, r), fmt.Sprintf("what was reserved by this name is not known: %v", err)
		default:
			return nil, nil, nil, err
		}
	}
	return rest, over, doubts, nil
}

// Days are the closed days of the ledger, the first one first.
func (p *Past) Days(ctx context.Context) ([]onpath.LedgerDay, error) {
	days, err := p.days(ctx, 0)
	out := []onpath.LedgerDay{}
	for _, d := range days {
		d.Missing = p.folder == nil || !p.folder.Has(d)
		out = append(out, d.LedgerDay)
	}
	return out, err
}

// check adds what closed days hold to a check, as of a revision. A file that cannot be
// believed is told, and the check goes on behind it.
func (p *Past) check(ctx context.Context, c *ledger.Check, at int64) error {
	days, err := p.days(ctx, at)
	if err != nil {
		return err
	}
	c.Days = len(days)
	before, broken := "", false
	var last *archive.Head // of the newest file, while its postings go from the store
	for i, d := range days {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := p.checkDay(c, d, before, broken)
		if err != nil {
			broken = true
			c.Wrong("%v", err)
		} else if i == len(days)-1 && !d.Done {
			last = h
		}
		before = d.SHA256
	}
	err = p.read.recordsAt(ctx, ledger.Balances, at, func(r onpath.Record, name string) error {
		var x ledger.Carried
		if err := json.Unmarshal(r.Value, &x); err != nil {
			return err
		}
		if last != nil { // which may be carried forward not yet
			a := slices.IndexFunc(last.Accounts, func(a archive.Account) bool { return a.Tenant == name })
			if a >= 0 && last.Accounts[a].First == x.Number+1 && last.Accounts[a].Opening == x.Balance {
				return nil
			}
		}
		if x.Tenant != name {
			c.Wrong("what is carried forward of tenant %s says that it is of %s", name, x.Tenant)
		}
		if !broken {
			c.Carried("what is carried forward", name, x.Number, x.Balance)
		}
		c.Resume(name, x.Number, x.Balance)
		return nil
	})
	c.EndFiles()
	return err
}

// checkDay adds a day's postings. Behind a file that cannot be read (broken) the balances with
// which the next one begins are believed.
func (p *Past) checkDay(c *ledger.Check, d archive.Day, before string, broken bool) (*archive.Head, error) {
	if p.folder == nil {
		return nil, noFolder(d)
	}
	h, err := p.folder.Look(d)
	if err != nil {
		return nil, err
	}
	for _, a := range h.Accounts {
		if !broken {
			c.Carried("the file of day "+d.Day, a.Tenant, a.First-1, a.Opening)
		}
		c.Resume(a.Tenant, a.First-1, a.Opening)
	}
	if h, err = p.folder.Check(d, before, c.Posting); err != nil {
		return nil, err
	}
	for _, a := range h.Accounts {
		c.Carried("the file of day "+d.Day, a.Tenant, a.Last, a.Closing)
	}
	return h, nil
}

func noFolder(d archive.Day) error {
	return onpath.Errorf(onpath.CodeUnavailable, "%s holds the ledger's day %s, and this server has no folder for such", d.File, d.Day)
}

// now is the time as it is written.
func (p *Past) now() time.Time { return p.watch.clock().UTC().Round(0) }
