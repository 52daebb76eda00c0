package client

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/wire"
)

// WatchOptions say what to watch.
type WatchOptions struct {
	Kinds  []onpath.Kind // none: all
	Tenant string        // empty: all that the caller may see
	From   int64         // revision of a List, or of the last event; 0: from now
}

// Change is one event of a watch.
type Change struct {
	Revision int64
	Key      onpath.Key
	Object   onpath.Object // nil: deleted
}

// The wait before a broken watch connects again, doubled from first to longest.
const (
	watchFirst   = 50 * time.Millisecond
	watchLongest = 2 * time.Second
)

// Watch calls do with each change in order, and connects again from where it was
// when the connection breaks, until ctx ends, do returns an error, or the changes
// in between are no longer kept (CodeConflict: list again).
func (c *Client) Watch(ctx context.Context, o WatchOptions, do func(Change) error) error {
	w := &watcher{do: do, from: o.From, query: url.Values{}}
	names := make([]string, len(o.Kinds))
	for i, k := range o.Kinds {
		names[i] = string(k)
	}
	if len(names) > 0 {
		w.query.Set("kinds", strings.Join(names, ","))
	}
	if o.Tenant != "" {
		w.query.Set("tenant", o.Tenant)
	}
	for wait := watchFirst; ; wait = min(2*wait, watchLongest) {
		before := w.from
		err := w.read(ctx, c)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case w.done || w.from == 0 || !onpath.Passing(err):
			return err
		case w.from != before:
			wait = watchFirst
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watcher is a watch over several connections. A write of several objects is
// one revision with several events; if a connection breaks within it, the next
// one begins with it again and what was seen is left out.
type watcher struct {
	do    func(Change) error
	query url.Values
	done  bool // do wants no more

	from int64               // everything up to here was seen
	last int64               // the revision being read
	seen map[onpath.Key]bool // of last
}

func (w *watcher) read(ctx context.Context, c *Client) error {
	if w.from != 0 {
		w.query.Set("from", strconv.FormatInt(w.from, 10))
	}
	s, err := c.open(ctx, "/v1/watch", w.query)
	if err != nil {
		return err
	}
	defer s.Close()
	d := json.NewDecoder(s)
	for {
		var e wire.WatchEvent
		if err := d.Decode(&e); err != nil {
			if err = s.ended(err); err == nil { // a watch has no end of its own
				err = onpath.Errorf(onpath.CodeUnavailable, "%s ended the watch", c.name)
			}
			return err
		}
		if err := w.event(e); err != nil {
			return err
		}
	}
}

func (w *watcher) event(e wire.WatchEvent) (err error) {
	if e.Key == nil {
		w.from = max(w.from, e.Revision)
		return nil
	}
	if e.Revision != w.last {
		w.last, w.seen = e.Revision, map[onpath.Key]bool{}
		w.from = max(w.from, e.Revision-1)
	}
	change := Change{Revision: e.Revision, Key: e.Key.Key()}
	if w.seen[change.Key] {
		return nil
	}
	w.seen[change.Key] = true
	if e.Object != nil {
		if change.Object, err = onpath.Decode(e.Object); err != nil {
			w.done = true
			return err
		}
	}
	if err := w.do(change); err != nil {
		w.done = true
		return err
	}
	return nil
}
