package translog

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/translog/tlogtiles"
	"github.com/onpath/onpath/store"
)

// gather is how long entries wait for others: what comes in it is signed together.
const gather = 200 * time.Millisecond

// continueEvery is how often the store is asked again which checkpoint is the newest.
const continueEvery = 500 * time.Millisecond

// Run adds what is in the store to the log until ctx ends.
func (l *Log) Run(ctx context.Context, s *Store, log *slog.Logger) error {
	for told := false; ; told = true {
		err := l.Continue(ctx, s)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
		case onpath.CodeOf(err) == onpath.CodeInvalid: // these files will never be the right ones
			log.Error("the public log is not signed, and entries wait in the store", "error", err)
			l.mu.Lock()
			l.signed, l.tree = nil, tlog.Tree{}
			l.mu.Unlock()
			<-ctx.Done()
			return nil
		default: // the store does not answer
			if !told {
				log.Error("the public log is not signed yet; it is tried on", "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(continueEvery):
				continue
			}
		}
		break
	}
	told := false
	for {
		err := l.Take(ctx, s)
		if err != nil && ctx.Err() == nil && !told {
			log.Error("entries wait in the store for the public log; it is tried on", "error", err)
		}
		told = err != nil
		wait := time.Second
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			wait = gather
		case <-time.After(10 * time.Second): // should anybody else have written some
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(wait, gather)):
		}
	}
}

// Continue refuses files that lack what was signed before, or have it changed.
func (l *Log) Continue(ctx context.Context, s *Store) error {
	page, err := s.Records(ctx, onpath.RecordsUnder(head))
	if err != nil || len(page.Records) == 0 {
		return err
	}
	v, err := note.NewVerifier(l.key)
	if err != nil {
		return err
	}
	refuse := func(why string) error {
		e := onpath.Errorf(onpath.CodeInvalid, "the public log in the server's folder is not the one that was signed last: %s", why)
		e.Remedy = "copy the folder log of the server that signed it; the public would find a fork"
		return e
	}
	n, err := note.Open(page.Records[0].Value, note.VerifierList(v))
	if err != nil {
		return refuse("it has another key")
	}
	_, t, err := tlogtiles.ParseCheckpoint(n.Text)
	if err != nil {
		return err
	}
	if t.N > l.sizeNow() {
		return refuse(fmt.Sprintf("it has %d entries of %d", l.sizeNow(), t.N))
	}
	if h, err := l.hash(t.N); err != nil || h != t.Hash {
		return refuse("entries were changed")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut()
}

// waiting are the records that wait in the store, in the order of their revisions.
func waiting(ctx context.Context, s *Store) (out []onpath.Record, err error) {
	for r := onpath.RecordsUnder(under); ; {
		page, err := s.Records(ctx, r)
		if err != nil {
			return nil, err
		}
		out = append(out, page.Records...)
		if r.From, r.Revision = page.Next, page.Revision; r.From == "" {
			break
		}
	}
	slices.SortFunc(out, func(a, b onpath.Record) int {
		return cmp.Or(cmp.Compare(a.Version, b.Version), cmp.Compare(a.Path, b.Path))
	})
	return out, nil
}

// Take adds the entries that wait in the store, and deletes their records once the log has
// them for good.
func (l *Log) Take(ctx context.Context, s *Store) error {
	list, err := waiting(ctx, s)
	if err != nil {
		return err
	}
	for len(list) > 0 {
		n := min(len(list), onpath.SureWrite/2)
		var lines []line
		done := onpath.Batch{}
		for i, r := range list[:n] {
			more, err := linesOf(r)
			if err != nil {
				return err
			}
			if i > 0 && len(lines)+len(more) > recent {
				n = i
				break
			}
			lines = append(lines, more...)
			done.Records = append(done.Records, onpath.Record{Path: r.Path, Version: onpath.AnyVersion, Delete: true})
		}
		if err := l.append(lines); err != nil {
			return unavailable(err)
		}
		done.Records = append(done.Records, onpath.Record{Path: head, Version: onpath.AnyVersion, Value: l.Checkpoint()})
		if _, err := s.Store.Write(store.FollowUp(ctx), done); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// linesOf are the lines of a record's entries.
func linesOf(r onpath.Record) (out []line, err error) {
	var entries []onpath.LogEntry
	if err := json.Unmarshal(r.Value, &entries); err != nil {
		return nil, fmt.Errorf("%s: %w", r.Path, err)
	}
	for i := range entries {
		x, err := lineOf(fmt.Sprintf("%s/%d", r.Path[len(under):], i), &entries[i])
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

// Sign signs a text with the log's key, where the log is the one that was signed last: a
// server with the key of another log signs nothing.
func (l *Log) Sign(text string) ([]byte, error) {
	if l.Checkpoint() == nil {
		e := onpath.Errorf(onpath.CodeUnavailable, "the public log is not signed, so that nothing is signed by its key")
		e.Remedy = "copy the folder log of the server that signed it last"
		return nil, e
	}
	return note.Sign(&note.Note{Text: text}, l.signer)
}

// Public is the log as the API serves it.
type Public struct {
	*Log
	Entries *Store
}

// Note writes an entry whose cause writes nothing.
func (p Public) Note(ctx context.Context, e onpath.LogEntry) error { return p.Entries.Note(ctx, e) }
