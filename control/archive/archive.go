// Package archive keeps closed days of the ledger in files outside the store: the postings
// of a day, and the reservations that were over by its end. A file is never changed. It
// names the hash of the file before it, and is signed with the key of the public log.
//
// The first line of a file is its Head, in JSON, the second one the signed note. What
// follows are the Parts of the Head, gzip of lines of JSON each.
package archive

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/mod/sumdb/note"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/ledger"
	"github.com/onpath/onpath/internal/wholefile"
)

// Signer signs texts with the server's key; translog.Log is one.
type Signer interface {
	Sign(text string) ([]byte, error)
	// Key is what who verifies needs.
	Key() string
}

// Folder holds the files.
type Folder struct {
	dir    string
	signer Signer

	mu    sync.Mutex
	heads map[string]*Head // by name of the file: those that were read last
	spans map[string][]span
	known map[string]bool // names of files of which spans has all accounts
}

// span is the numbers of a tenant's postings in a file, which never changes.
type span struct {
	first, last int64
	day         *Day
}

// Open makes the folder if it is not there.
func Open(dir string, signer Signer) (*Folder, error) {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = wholefile.Clean(dir)
	}
	if err != nil {
		return nil, onpath.Errorf(onpath.CodeUnavailable, "the folder of the ledger's closed days: %w", err)
	}
	return &Folder{dir: dir, signer: signer, heads: map[string]*Head{}, spans: map[string][]span{}, known: map[string]bool{}}, nil
}

// Day is what the store keeps of a day whose file is written.
type Day struct {
	onpath.LedgerDay
	// Done: of what the file has, the store keeps nothing any more but balances.
	Done bool `json:"done,omitempty"`
}

// Head says what a file holds.
type Head struct {
	Day string `json:"day"`
	// Before is the SHA256 of the day before, the last one that has a file.
	Before       string        `json:"before,omitempty"`
	Accounts     []Account     `json:"accounts"`
	Reservations []Reservation `json:"reservations"`
	Parts        []Part        `json:"parts"`

	body int64 // where the parts begin
}

// Account is one with postings in a file: their first and last numbers, and the balance
// before and after them.
type Account struct {
	Tenant  string       `json:"tenant"`
	First   int64        `json:"first"`
	Last    int64        `json:"last"`
	Opening onpath.Money `json:"opening"`
	Closing onpath.Money `json:"closing"`
}

// Reservation is one in a file, by TENANT/NAME, and its version in the store.
type Reservation struct {
	Name    string `json:"name"`
	Version int64  `json:"version"`
}

// Part is postings of a tenant from number First on, or (Tenant "") reservations from the
// one on that has place First in the Head.
type Part struct {
	Tenant string `json:"tenant,omitempty"`
	First  int64  `json:"first"`
	Count  int64  `json:"count"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// What bounds a part: whoever looks for one line reads no more. A part of as many bytes of
// lines gets no further line.
const (
	mostLines = 5000
	mostBytes = 1 << 20
)

func text(day, sum string) string { return "onpath ledger " + day + "\n" + sum + "\n" }

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Writer makes the file of a day. Only Write touches the disk.
type Writer struct {
	folder *Folder
	head   Head
	parts  bytes.Buffer // whole ones
	lines  bytes.Buffer // of the part that grows
	day    onpath.LedgerDay
}

// Begin begins the file of a day; before is the SHA256 of the day before.
func (f *Folder) Begin(day, before string) *Writer {
	return &Writer{folder: f, head: Head{Day: day, Before: before, Accounts: []Account{}, Reservations: []Reservation{}, Parts: []Part{}}}
}

// Account begins an account; its postings follow in order.
func (w *Writer) Account(tenant string, opening onpath.Money) error {
	w.head.Accounts = append(w.head.Accounts, Account{Tenant: tenant, Opening: opening, Closing: opening})
	return w.endPart()
}

// Posting adds one of the account that was begun last.
func (w *Writer) Posting(p *onpath.Posting) error {
	a := &w.head.Accounts[len(w.head.Accounts)-1]
	if a.First == 0 {
		a.First = p.Number
	}
	a.Last, a.Closing = p.Number, a.Closing+ledger.Moved(p)
	w.day.Postings++
	return w.line(p.Tenant, p.Number, p)
}

// Reservation adds one; they follow the postings.
func (w *Writer) Reservation(r *onpath.Reservation) error {
	if len(w.head.Reservations) == 0 {
		if err := w.endPart(); err != nil {
			return err
		}
	}
	k := onpath.KeyOf(r)
	w.head.Reservations = append(w.head.Reservations, Reservation{k.Tenant + "/" + k.Name, r.Metadata.Version})
	w.day.Reservations++
	return w.line("", int64(len(w.head.Reservations)-1), r)
}

func (w *Writer) line(tenant string, place int64, v any) error {
	if w.lines.Len() == 0 {
		w.head.Parts = append(w.head.Parts, Part{Tenant: tenant, First: place})
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.lines.Write(append(b, '\n'))
	part := &w.head.Parts[len(w.head.Parts)-1]
	if part.Count++; part.Count == mostLines || w.lines.Len() >= mostBytes {
		return w.endPart()
	}
	return nil
}

func (w *Writer) endPart() error {
	if w.lines.Len() == 0 {
		return nil
	}
	begin := w.parts.Len()
	z := gzip.NewWriter(&w.parts)
	_, err := z.Write(w.lines.Bytes())
	if err := errors.Join(err, z.Close()); err != nil {
		return err
	}
	w.lines.Reset()
	part := &w.head.Parts[len(w.head.Parts)-1]
	part.Bytes, part.SHA256 = int64(w.parts.Len()-begin), hash(w.parts.Bytes()[begin:])
	return nil
}

// Write signs the file and puts it into the folder, for good.
func (w *Writer) Write() (Day, error) {
	w.head.Accounts = slices.DeleteFunc(w.head.Accounts, func(a Account) bool { return a.First == 0 })
	err := w.endPart()
	if err != nil {
		return Day{}, err
	}
	head, err := json.Marshal(&w.head)
	if err != nil {
		return Day{}, err
	}
	sum := hash(head)
	signed, err := w.folder.signer.Sign(text(w.head.Day, sum))
	if err != nil {
		return Day{}, err
	}
	seal, err := json.Marshal(string(signed))
	if err != nil {
		return Day{}, err
	}
	all := slices.Concat(head, []byte("\n"), seal, []byte("\n"), w.parts.Bytes())
	w.day.Bytes = int64(len(all))
	w.day.Day, w.day.File, w.day.SHA256 = w.head.Day, w.head.Day+"-"+sum[:12]+".ledger", sum
	d := Day{LedgerDay: w.day}
	if err := wholefile.Write(filepath.Join(w.folder.dir, d.File), all, 0o600); err != nil {
		return Day{}, onpath.Errorf(onpath.CodeUnavailable, "the ledger's day %s cannot be written: %w", d.Day, err)
	}
	return d, nil
}

// changed is the error for a file that is not as it was written.
func (f *Folder) changed(d Day, format string, args ...any) error {
	e := onpath.Errorf(onpath.CodeInvalid, "%s, which holds the ledger's day %s, is not as it was written: %w",
		filepath.Join(f.dir, d.File), d.Day, fmt.Errorf(format, args...))
	e.Remedy = "bring it back from a backup"
	return e
}

func (f *Folder) unread(d Day, err error) error {
	path := filepath.Join(f.dir, d.File)
	if errors.Is(err, fs.ErrNotExist) {
		e := onpath.Errorf(onpath.CodeUnavailable, "%s is not there, which holds the ledger's day %s", path, d.Day)
		e.Remedy = "copy the folder " + filepath.Base(f.dir) + " of the server that wrote it, or bring it back from a backup"
		return e
	}
	return onpath.Errorf(onpath.CodeUnavailable, "%s, which holds the ledger's day %s: %w", path, d.Day, err)
}

// readHead reads the head of an open file, and finds whether it was signed.
func (f *Folder) readHead(d Day, file *os.File) (*Head, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, f.unread(d, err)
	}
	if info.Size() != d.Bytes {
		return nil, f.changed(d, "it has %d bytes of %d", info.Size(), d.Bytes)
	}
	lines, err := firstLines(file, 2)
	if err != nil {
		return nil, f.changed(d, "%w", err)
	}
	if hash(lines[0]) != d.SHA256 {
		return nil, f.changed(d, "its first line has another hash than the store knows")
	}
	var signed string
	verifier, err := note.NewVerifier(f.signer.Key())
	if err == nil {
		err = json.Unmarshal(lines[1], &signed)
	}
	if err != nil {
		return nil, f.changed(d, "its signature: %w", err)
	}
	if n, err := note.Open([]byte(signed), note.VerifierList(verifier)); err != nil || n.Text != text(d.Day, d.SHA256) {
		return nil, f.changed(d, "it is not signed by the key %s", verifier.Name())
	}
	h := &Head{body: int64(len(lines[0]) + len(lines[1]) + 2)}
	if err := json.Unmarshal(lines[0], h); err != nil {
		return nil, f.changed(d, "its first line: %w", err)
	}
	return h, nil
}

// firstLines are the first lines of a file, without their ends.
func firstLines(file *os.File, n int) (out [][]byte, err error) {
	var all []byte
	for at := 0; len(out) < n; {
		if i := bytes.IndexByte(all[at:], '\n'); i >= 0 {
			out, at = append(out, all[at:at+i]), at+i+1
			continue
		}
		more := make([]byte, 64<<10)
		k, err := file.ReadAt(more, int64(len(all)))
		if k == 0 {
			return nil, fmt.Errorf("it ends within its first lines: %w", err)
		}
		all = append(all, more[:k]...)
	}
	return out, nil
}

// mostHeads is how many heads are kept.
const mostHeads = 50

// Look looks whether a day's file is there and signed. Its parts are not read.
func (f *Folder) Look(d Day) (*Head, error) {
	file, err := os.Open(filepath.Join(f.dir, d.File))
	if err != nil {
		return nil, f.unread(d, err)
	}
	defer file.Close()
	return f.readHead(d, file)
}

// Head is that of a day's file, which was signed when it was read last.
func (f *Folder) Head(d Day) (*Head, error) {
	f.mu.Lock()
	h := f.heads[d.File]
	f.mu.Unlock()
	if h != nil {
		return h, nil
	}
	h, err := f.Look(d)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.heads) >= mostHeads {
		clear(f.heads)
	}
	f.heads[d.File] = h
	if !f.known[d.File] {
		f.known[d.File] = true
		for _, a := range h.Accounts {
			f.spans[a.Tenant] = append(f.spans[a.Tenant], span{a.First, a.Last, &d})
		}
	}
	return h, nil
}

// Find is the day, of those given (the newest one last), whose file has a tenant's posting of a
// number. It reads the head of each file once, from the newest one back; nil: no file has the
// posting. A file that cannot be read is an error if no other one has the posting.
func (f *Folder) Find(days []Day, tenant string, number int64) (*Day, error) {
	var unread error
	for back := len(days); ; back-- {
		f.mu.Lock()
		for back > 0 && f.known[days[back-1].File] {
			back--
		}
		i := slices.IndexFunc(f.spans[tenant], func(x span) bool { return x.first <= number && number <= x.last })
		var d *Day
		if i >= 0 {
			d = f.spans[tenant][i].day
		}
		f.mu.Unlock()
		if d != nil {
			return d, nil
		}
		if back == 0 {
			return nil, unread
		}
		if _, err := f.Head(days[back-1]); err != nil && unread == nil {
			unread = err
		}
	}
}

// each calls yield for each line of a part, as far as yield wants more.
func (f *Folder) each(d Day, h *Head, part int, file *os.File, yield func(line []byte) (more bool, err error)) error {
	at := h.body
	for _, x := range h.Parts[:part] {
		at += x.Bytes
	}
	x := h.Parts[part]
	b := make([]byte, x.Bytes)
	if _, err := file.ReadAt(b, at); err != nil {
		return f.unread(d, err)
	}
	if hash(b) != x.SHA256 {
		return f.changed(d, "its part %d has another hash than its first line says", part+1)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return f.changed(d, "%w", err)
	}
	var lines bytes.Buffer
	if _, err := lines.ReadFrom(z); err != nil {
		return f.changed(d, "%w", err)
	}
	for line := range bytes.Lines(lines.Bytes()) {
		if more, err := yield(line); err != nil || !more {
			return err
		}
	}
	return nil
}

// Postings are those of a tenant from a number on that one part of a day's file has, at
// most limit (0: all of the part); none: the day has not that number.
func (f *Folder) Postings(d Day, tenant string, from int64, limit int) (out []onpath.Posting, err error) {
	h, err := f.Head(d)
	if err != nil {
		return nil, err
	}
	part := slices.IndexFunc(h.Parts, func(x Part) bool {
		return x.Tenant == tenant && x.First <= from && from < x.First+x.Count
	})
	if part < 0 {
		return nil, nil
	}
	file, err := os.Open(filepath.Join(f.dir, d.File))
	if err != nil {
		return nil, f.unread(d, err)
	}
	defer file.Close()
	skip := from - h.Parts[part].First
	err = f.each(d, h, part, file, func(line []byte) (bool, error) {
		if skip > 0 {
			skip--
			return true, nil
		}
		var p onpath.Posting
		err := json.Unmarshal(line, &p)
		out = append(out, p)
		return len(out) != limit, err
	})
	return out, err
}

// Reservation is one of a day's file as it was when it was over.
func (f *Folder) Reservation(d Day, name string) (r *onpath.Reservation, err error) {
	h, err := f.Head(d)
	if err != nil {
		return nil, err
	}
	place := int64(slices.IndexFunc(h.Reservations, func(x Reservation) bool { return x.Name == name }))
	part := slices.IndexFunc(h.Parts, func(x Part) bool { return x.Tenant == "" && x.First <= place && place < x.First+x.Count })
	if place < 0 || part < 0 {
		return nil, f.changed(d, "it has no reservation %s", name)
	}
	file, err := os.Open(filepath.Join(f.dir, d.File))
	if err != nil {
		return nil, f.unread(d, err)
	}
	defer file.Close()
	skip := place - h.Parts[part].First
	err = f.each(d, h, part, file, func(line []byte) (bool, error) {
		if skip > 0 {
			skip--
			return true, nil
		}
		r = new(onpath.Reservation)
		err := json.Unmarshal(line, r)
		r.Metadata.Version = h.Reservations[place].Version
		return false, err
	})
	return r, err
}

// Check reads all of a day's file and compares it with its hashes and its signature;
// posting gets each posting. before is the SHA256 of
// the day before.
func (f *Folder) Check(d Day, before string, posting func(*onpath.Posting)) (*Head, error) {
	file, err := os.Open(filepath.Join(f.dir, d.File))
	if err != nil {
		return nil, f.unread(d, err)
	}
	defer file.Close()
	h, err := f.readHead(d, file)
	if err != nil {
		return nil, err
	}
	if h.Day != d.Day || h.Before != before {
		return nil, f.changed(d, "it is of day %s, and follows another file than the one before", h.Day)
	}
	end := h.body
	for i, x := range h.Parts {
		n := int64(0)
		err := f.each(d, h, i, file, func(line []byte) (bool, error) {
			n++
			if x.Tenant == "" {
				return true, json.Unmarshal(line, new(onpath.Reservation))
			}
			var p onpath.Posting
			err := json.Unmarshal(line, &p)
			if err == nil {
				posting(&p)
			}
			return true, err
		})
		if err != nil {
			return nil, err
		}
		if n != x.Count {
			return nil, f.changed(d, "its part %d has %d lines of %d", i+1, n, x.Count)
		}
		end += x.Bytes
	}
	if end != d.Bytes {
		return nil, f.changed(d, "it has %d bytes, its parts end at %d", d.Bytes, end)
	}
	return h, nil
}

// Has reports whether a day's file is in the folder.
func (f *Folder) Has(d Day) bool {
	info, err := os.Stat(filepath.Join(f.dir, d.File))
	return err == nil && info.Mode().IsRegular()
}
