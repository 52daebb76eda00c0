package store

import (
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// RequestKept is how long a store remembers the id of a request at least.
const RequestKept = time.Hour

// MaxPage is the largest page of records, in records.
const MaxPage = 5000

// Check refuses a batch that no store can take: too many parts, an object under
// another's key, the same key twice, names that would break out of their key.
func Check(b onpath.Batch) error {
	if n := len(b.Changes); n > onpath.MaxWrite {
		return onpath.Errorf(onpath.CodeInvalid, "%d changes in one write; at most %d are possible", n, onpath.MaxWrite)
	}
	if n := len(b.Guards) + len(b.Records); n > onpath.MaxWrite {
		return onpath.Errorf(onpath.CodeInvalid, "%d guards and records in one write; at most %d are possible", n, onpath.MaxWrite)
	}
	if len(b.Request) > onpath.MaxRequestID || strings.ContainsAny(b.Request, "/\x00") {
		return onpath.Errorf(onpath.CodeInvalid, "%.80q is no id of a request: it has at most %d characters and no slash",
			b.Request, onpath.MaxRequestID)
	}
	if len(b.Note) > onpath.MaxNote {
		return onpath.Errorf(onpath.CodeInvalid, "the note of request %s has %d bytes; at most %d are possible", b.Request,
			len(b.Note), onpath.MaxNote)
	}
	seen := make(map[string]bool, len(b.Changes)+len(b.Guards)+len(b.Records))
	for _, c := range b.Changes {
		if err := checkChange(c, seen); err != nil {
			return err
		}
	}
	for _, g := range b.Guards {
		if err := checkGuard(g, seen); err != nil {
			return err
		}
	}
	for _, r := range b.Records {
		if err := checkRecord(r, seen); err != nil {
			return err
		}
	}
	return nil
}

func checkChange(c onpath.Change, seen map[string]bool) error {
	if err := CheckKey(c.Key); err != nil {
		return err
	}
	if c.Object != nil && onpath.KeyOf(c.Object) != c.Key {
		return fail(onpath.CodeInvalid, c.Key, "the object to be written is "+onpath.KeyOf(c.Object).String())
	}
	return once(seen, Path(c.Key), c.Key.String())
}

func checkGuard(g onpath.Guard, seen map[string]bool) error {
	if g.Path == "" {
		if err := CheckKey(g.Key); err != nil {
			return err
		}
	} else if err := CheckRecordPath(g.Path); err != nil {
		return err
	}
	return once(seen, GuardPath(g), guarded(g))
}

func checkRecord(r onpath.Record, seen map[string]bool) error {
	if err := CheckRecordPath(r.Path); err != nil {
		return err
	}
	if len(r.Value) > onpath.MaxRecord {
		return onpath.Errorf(onpath.CodeInvalid, "record %s has %d bytes; at most %d are possible", r.Path, len(r.Value), onpath.MaxRecord)
	}
	return once(seen, Records+r.Path, "record "+r.Path)
}

func once(seen map[string]bool, key, name string) error {
	if seen[key] {
		return &onpath.Error{Code: onpath.CodeInvalid, Object: name, Message: "it is named twice in one write"}
	}
	seen[key] = true
	return nil
}

// CheckRecordPath refuses paths that no store can keep.
func CheckRecordPath(path string) error {
	if path == "" || len(path) > onpath.MaxPath || strings.ContainsRune(path, 0) {
		return onpath.Errorf(onpath.CodeInvalid, "%.80q is no path of a record: it has 1 to %d bytes, none of them 0", path, onpath.MaxPath)
	}
	return nil
}

// GuardPath is the key of what g names, in a flat key space.
func GuardPath(g onpath.Guard) string {
	if g.Path != "" {
		return Records + g.Path
	}
	return Path(g.Key)
}

func guarded(g onpath.Guard) string {
	if g.Path != "" {
		return "record " + g.Path
	}
	return g.Key.String()
}

// GuardConflict is the error for a guard where version have (0: nothing) is stored.
func GuardConflict(g onpath.Guard, have int64) error {
	return conflict(guarded(g), g.Version, have)
}

// RecordConflict is the error for a record where version have (0: none) is stored.
func RecordConflict(r onpath.Record, have int64) error {
	return conflict("record "+r.Path, r.Version, have)
}

// PageSize is how many records a page of r has at most.
func PageSize(r onpath.RecordRange) int {
	if r.Limit <= 0 || r.Limit > MaxPage {
		return MaxPage
	}
	return r.Limit
}
