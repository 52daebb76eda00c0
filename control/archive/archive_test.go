package archive

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/translog"
)

// TestPartsAreBoundByBytes: whoever asks for one reservation of a day, or one posting, reads a
// part of little more than a MiB, however long the lines are.
func TestPartsAreBoundByBytes(t *testing.T) {
	l, err := translog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := Open(t.TempDir(), l)
	if err != nil {
		t.Fatal(err)
	}
	const lines, long = 30, 100_000
	w := f.Begin("2026-11-24", "")
	if err := w.Account("acme", 0); err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("x", long)
	for i := range lines {
		if err := w.Posting(&onpath.Posting{Tenant: "acme", Number: int64(i) + 1, Reference: text}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range lines {
		r := &onpath.Reservation{Metadata: onpath.Metadata{Tenant: "acme", Name: fmt.Sprint("r", i), Labels: map[string]string{"text": text}}}
		if err := w.Reservation(r); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Write()
	if err != nil {
		t.Fatal(err)
	}
	h, err := f.Check(d, "", func(*onpath.Posting) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range h.Parts {
		if p.Count*long > mostBytes+long {
			t.Errorf("a part has %d lines of %d bytes", p.Count, long)
		}
	}
	for i := range lines {
		name := fmt.Sprint("acme/r", i)
		if r, err := f.Reservation(d, name); err != nil || onpath.KeyOf(r).Tenant+"/"+onpath.KeyOf(r).Name != name {
			t.Errorf("%s: %v %v", name, r, err)
		}
	}
	for next := int64(1); next <= lines; {
		list, err := f.Postings(d, "acme", next, 0)
		if err != nil || len(list) == 0 || list[0].Number != next {
			t.Fatalf("from posting %d: %d, %v", next, len(list), err)
		}
		next += int64(len(list))
	}
}
