package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/onpath/onpath"
)

func record(path, value string, version int64) onpath.Record {
	return onpath.Record{Path: path, Value: []byte(value), Version: version}
}

func writeBatch(t *testing.T, ctx context.Context, s onpath.Store, b onpath.Batch) onpath.Written {
	t.Helper()
	w, err := s.Write(ctx, b)
	if err != nil {
		t.Fatalf("write: %v", err)
	}
	return w
}

// listed are the records of a range, as "path=value …", and how many pages they took.
func listed(t *testing.T, ctx context.Context, s onpath.Store, r onpath.RecordRange) (text string, pages int) {
	t.Helper()
	var all []string
	for {
		p, err := s.Records(ctx, r)
		if err != nil {
			t.Fatalf("records: %v", err)
		}
		for _, rec := range p.Records {
			all = append(all, rec.Path+"="+string(rec.Value))
		}
		if pages++; p.Next == "" {
			return strings.Join(all, " "), pages
		}
		r.From, r.Revision = p.Next, p.Revision
	}
}

func wantRecords(t *testing.T, ctx context.Context, s onpath.Store, r onpath.RecordRange, want string) {
	t.Helper()
	if got, _ := listed(t, ctx, s, r); got != want {
		t.Errorf("records from %q to %q: %q, want %q", r.From, r.To, got, want)
	}
}

func testRecords(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	wantRecords(t, ctx, s, onpath.RecordRange{}, "")
	var records []onpath.Record
	for _, tenant := range []string{"b", "a", "a-b"} {
		for i := range 3 {
			records = append(records, record(fmt.Sprintf("posting/%s/%03d", tenant, i), tenant+strconv.Itoa(i), 0))
		}
	}
	w := writeBatch(t, ctx, s, onpath.Batch{Records: records, Changes: []onpath.Change{put(chain("a", "x", 1), 0)}})
	wantRecords(t, ctx, s, onpath.RecordsUnder("posting/a/"), "posting/a/000=a0 posting/a/001=a1 posting/a/002=a2")
	wantRecords(t, ctx, s, onpath.RecordRange{From: "posting/a/001", To: "posting/a/002"}, "posting/a/001=a1")
	wantRecords(t, ctx, s, onpath.RecordRange{From: "posting/b/001"}, "posting/b/001=b1 posting/b/002=b2")
	wantRecords(t, ctx, s, onpath.RecordsUnder("postings"), "")
	all, pages := listed(t, ctx, s, onpath.RecordRange{Limit: 2})
	if want := "posting/a-b/000=a-b0 posting/a-b/001=a-b1 posting/a-b/002=a-b2 posting/a/000=a0"; !strings.HasPrefix(all, want) || pages != 5 {
		t.Errorf("in pages of two: %q in %d pages", all, pages)
	}
	writeBatch(t, ctx, s, onpath.Batch{Records: []onpath.Record{
		{Path: "posting/a/001", Delete: true, Version: w.Revision}, record("posting/a/002", "new", w.Revision), record("posting/a/003", "a3", 0)}})
	wantRecords(t, ctx, s, onpath.RecordsUnder("posting/a/"), "posting/a/000=a0 posting/a/002=new posting/a/003=a3")
	then := onpath.RecordsUnder("posting/a/")
	then.Revision = w.Revision
	wantRecords(t, ctx, s, then, "posting/a/000=a0 posting/a/001=a1 posting/a/002=a2")
	if list, _, err := s.List(ctx, onpath.KindChain, ""); err != nil || len(list) != 1 {
		t.Errorf("%d chains beside records (%v)", len(list), err)
	}
	latest, err := s.Records(ctx, onpath.RecordRange{})
	if err != nil || latest.Revision <= w.Revision {
		t.Fatalf("read as of %d (%v), after a write at %d", latest.Revision, err, w.Revision)
	}
	if err := h.Compact(ctx, latest.Revision); err != nil {
		t.Fatal(err)
	}
	_, err = s.Records(ctx, then)
	wantCode(t, err, onpath.CodeConflict)
	wantRecords(t, ctx, s, onpath.RecordsUnder("posting/a/"), "posting/a/000=a0 posting/a/002=new posting/a/003=a3")
}

func testRecordVersions(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	try := func(r onpath.Record) error {
		_, err := s.Write(ctx, onpath.Batch{Records: []onpath.Record{r}})
		return err
	}
	w := writeBatch(t, ctx, s, onpath.Batch{Records: []onpath.Record{record("account/a", "1", 0)}})
	err := try(record("account/a", "2", 0))
	wantCode(t, err, onpath.CodeConflict)
	if e := (*onpath.Error)(nil); !errors.As(err, &e) || e.Object != "record account/a" {
		t.Errorf("the conflict names %+v", e)
	}
	if err := try(record("account/a", "", w.Revision)); err != nil { // bumped, and emptied
		t.Fatal(err)
	}
	p, err := s.Records(ctx, onpath.RecordRange{})
	if err != nil || len(p.Records) != 1 || p.Records[0].Version <= w.Revision || len(p.Records[0].Value) != 0 {
		t.Fatalf("a bumped record is %+v (%v)", p, err)
	}
	wantCode(t, try(record("account/a", "3", w.Revision)), onpath.CodeConflict)
	wantCode(t, try(onpath.Record{Path: "account/a", Delete: true, Version: w.Revision}), onpath.CodeConflict)
	if err := try(record("account/a", "4", onpath.AnyVersion)); err != nil {
		t.Error(err)
	}
	for range 2 { // the second deletes nothing
		if err := try(onpath.Record{Path: "account/a", Delete: true, Version: onpath.AnyVersion}); err != nil {
			t.Error(err)
		}
	}
	wantRecords(t, ctx, s, onpath.RecordRange{}, "")
	if err := try(record("account/a", "5", 0)); err != nil {
		t.Error(err)
	}
}

func testGuards(t *testing.T, ctx context.Context, h Harness) {
	s, price := h.Store, chain("a", "price", 1)
	w := writeBatch(t, ctx, s, onpath.Batch{Changes: []onpath.Change{put(price, 0)}, Records: []onpath.Record{record("node/n1", "", 0)}})
	n := 0
	guarded := func(guards ...onpath.Guard) error {
		n++
		_, err := s.Write(ctx, onpath.Batch{Guards: guards, Records: []onpath.Record{record(fmt.Sprint("posting/", n), "", 0)}})
		return err
	}
	object, node := onpath.Guard{Key: onpath.KeyOf(price), Version: w.Revision}, onpath.Guard{Path: "node/n1", Version: w.Revision}
	absent, noNode := onpath.Guard{Key: onpath.KeyOf(chain("a", "none", 0))}, onpath.Guard{Path: "node/n2"}
	for range 2 { // a guard bumps nothing
		if err := guarded(object, node, absent, noNode); err != nil {
			t.Fatal(err)
		}
	}
	write(t, ctx, s, put(price, w.Revision))
	err := guarded(object)
	wantCode(t, err, onpath.CodeConflict)
	if e := (*onpath.Error)(nil); !errors.As(err, &e) || e.Object != "chain a/price" {
		t.Errorf("the conflict names %+v", e)
	}
	write(t, ctx, s, put(chain("a", "none", 0), 0))
	wantCode(t, guarded(absent), onpath.CodeConflict)
	writeBatch(t, ctx, s, onpath.Batch{Records: []onpath.Record{record("node/n1", "", w.Revision), record("node/n2", "", 0)}})
	wantCode(t, guarded(node), onpath.CodeConflict)
	wantCode(t, guarded(noNode), onpath.CodeConflict)
	wantRecords(t, ctx, s, onpath.RecordsUnder("posting/"), "posting/1= posting/2=")
}

func testBatchAllOrNone(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	writeBatch(t, ctx, s, onpath.Batch{Changes: []onpath.Change{put(chain("a", "there", 1), 0)}, Records: []onpath.Record{record("there", "1", 0)}})
	new := put(chain("a", "new", 1), 0)
	for name, b := range map[string]onpath.Batch{
		"change": {Changes: []onpath.Change{new, put(chain("a", "there", 2), 0)}, Records: []onpath.Record{record("new", "", 0)}},
		"record": {Changes: []onpath.Change{new}, Records: []onpath.Record{record("new", "", 0), record("there", "2", 0)}},
		"guard":  {Changes: []onpath.Change{new}, Records: []onpath.Record{record("new", "", 0)}, Guards: []onpath.Guard{{Path: "there"}}},
	} {
		b.Request = name
		_, err := s.Write(ctx, b)
		if onpath.CodeOf(err) != onpath.CodeConflict {
			t.Errorf("%s: %v", name, err)
		}
		wantRecords(t, ctx, s, onpath.RecordRange{}, "there=1")
		if _, err := s.Get(ctx, new.Key); onpath.CodeOf(err) != onpath.CodeNotFound {
			t.Errorf("%s: half of a refused batch is there: %v", name, err)
		}
		if w, err := s.Write(ctx, onpath.Batch{Request: name, Records: []onpath.Record{record("tried/"+name, "", 0)}}); err != nil || w.Repeated {
			t.Errorf("%s: the id of a refused request is taken: %+v, %v", name, w, err)
		}
		writeBatch(t, ctx, s, onpath.Batch{Records: []onpath.Record{{Path: "tried/" + name, Version: onpath.AnyVersion, Delete: true}}})
	}
}

func testRequest(t *testing.T, ctx context.Context, h Harness) {
	s, c := h.Store, chain("a", "x", 1)
	b := onpath.Batch{Request: "r1", Note: []byte("answer"), Changes: []onpath.Change{put(c, 0)}, Records: []onpath.Record{record("posting/1", "7", 0)}}
	first := writeBatch(t, ctx, s, b)
	uid := c.Metadata.UID
	if first.Repeated || first.Revision == 0 || c.Metadata.Version != first.Revision {
		t.Fatalf("written as %+v, the object as %+v", first, c.Metadata)
	}
	c.Metadata.Version = 0
	again := writeBatch(t, ctx, s, b)
	if !again.Repeated || again.Revision != first.Revision || string(again.Note) != "answer" || c.Metadata.Version != first.Revision || c.Metadata.UID != uid {
		t.Errorf("repeated: %+v, the object is %+v", again, c.Metadata)
	}
	write(t, ctx, s, onpath.Change{Key: onpath.KeyOf(c), Version: first.Revision})
	if again = writeBatch(t, ctx, s, b); !again.Repeated {
		t.Error("what was deleted since came back with the repetition")
	}
	if _, err := s.Get(ctx, onpath.KeyOf(c)); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("after the deletion: %v", err)
	}
	if w := writeBatch(t, ctx, s, onpath.Batch{Request: "r1"}); !w.Repeated || w.Revision != first.Revision || string(w.Note) != "answer" {
		t.Errorf("looked for: %+v", w)
	}
	for range 2 { // looking for it does not write it
		if w := writeBatch(t, ctx, s, onpath.Batch{Request: "r2"}); w.Repeated {
			t.Errorf("never written, and found: %+v", w)
		}
	}
	b.Request = "r2"
	_, err := s.Write(ctx, b)
	wantCode(t, err, onpath.CodeConflict) // the posting is there
	wantRecords(t, ctx, s, onpath.RecordRange{}, "posting/1=7")
}

func testBatchRefused(t *testing.T, ctx context.Context, h Harness) {
	s := h.Store
	var many []onpath.Record
	for i := range onpath.MaxWrite + 1 {
		many = append(many, record(fmt.Sprint(i), "", 0))
	}
	x := []onpath.Record{record("x", "", 0)}
	for name, b := range map[string]onpath.Batch{
		"too many":       {Records: many},
		"too big":        {Records: []onpath.Record{record("x", string(make([]byte, onpath.MaxRecord+1)), 0)}},
		"twice":          {Records: []onpath.Record{record("x", "", 0), record("x", "", 0)}},
		"guard twice":    {Records: x, Guards: []onpath.Guard{{Path: "x"}}},
		"no path":        {Records: []onpath.Record{record("", "", 0)}},
		"zero":           {Records: []onpath.Record{record("a\x00", "", 0)}},
		"long path":      {Records: []onpath.Record{record(strings.Repeat("x", onpath.MaxPath+1), "", 0)}},
		"no guard":       {Records: x, Guards: []onpath.Guard{{}}},
		"guard key":      {Records: x, Guards: []onpath.Guard{{Key: onpath.Key{Kind: onpath.KindChain, Tenant: "a", Name: "b/c"}}}},
		"request":        {Records: x, Request: "a/b"},
		"long request":   {Records: x, Request: strings.Repeat("x", onpath.MaxRequestID+1)},
		"note too large": {Records: x, Request: "a", Note: make([]byte, onpath.MaxNote+1)},
	} {
		if _, err := s.Write(ctx, b); onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantRecords(t, ctx, s, onpath.RecordRange{}, "")
}

// testAdmission: of writers that promise what they read to be free, none promises
// more than there is, and none of them loses a posting.
func testAdmission(t *testing.T, ctx context.Context, h Harness) {
	const writers, each, capacity = 4, 8, 20
	s := h.Store
	var mu sync.Mutex
	admitted := 0
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := 0; i < each; {
				full, err := admit(ctx, s, fmt.Sprintf("w%d-%d", w, i), capacity)
				switch onpath.CodeOf(err) {
				case "":
					mu.Lock()
					if i++; !full {
						admitted++
					}
					mu.Unlock()
				case onpath.CodeConflict: // another one was faster
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	p, err := s.Records(ctx, onpath.RecordsUnder("posting/"))
	if err != nil || admitted != capacity || len(p.Records) != capacity {
		t.Errorf("%d of %d admitted, %d postings (%v); there is room for %d", admitted, writers*each, len(p.Records), err, capacity)
	}
}

// admit takes one of what node/n1 has left, if there is any.
func admit(ctx context.Context, s onpath.Store, name string, capacity int) (full bool, err error) {
	p, err := s.Records(ctx, onpath.RecordsUnder("node/n1"))
	if err != nil {
		return false, err
	}
	node := onpath.Record{Path: "node/n1"}
	if len(p.Records) > 0 {
		node = p.Records[0]
	}
	used, _ := strconv.Atoi(string(node.Value))
	if used == capacity {
		return true, nil
	}
	node.Value = []byte(strconv.Itoa(used + 1))
	_, err = s.Write(ctx, onpath.Batch{Request: name, Records: []onpath.Record{node, record("posting/"+name, "", 0)}})
	return false, err
}
