// Package translog is the operator's public log: one append-only Merkle log of claims,
// of whose traffic tenants intercept, and of every change, refused sign-in, command and
// capture. An entry is written to the store in the transaction of its cause (Store); Run
// puts entries into the order of the store's revisions, adds them to the log's files and
// signs a checkpoint, within a second. What is served is laid out as C2SP's tlog-tiles.
package translog

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/translog/tlogtiles"
	"github.com/onpath/onpath/internal/wholefile"
)

// line is an entry in the file of entries.
type line struct {
	// ID is that of its record in the store, with the entry's number in there.
	ID string `json:"id"`
	// Leaf is what the log has of it: the entry, or a hash.
	Leaf string `json:"leaf"`
	// Secret is what stands behind a hash.
	Secret *secret `json:"secret,omitempty"`
}

type secret struct {
	Salt  string          `json:"salt"`
	Entry json.RawMessage `json:"entry"`
}

// leaf is what the log has of an entry.
type leaf struct {
	*onpath.LogEntry
	Hash string `json:"sha256,omitempty"` // of salt and entry, of those that are not public
}

// lineOf makes the line of an entry.
func lineOf(id string, e *onpath.LogEntry) (line, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return line{}, err
	}
	if e.Public() && len(b) <= tlogtiles.MaxEntry {
		return line{ID: id, Leaf: string(b)}, nil
	}
	salt := make([]byte, 16)
	_, _ = rand.Read(salt)
	s := &secret{Salt: hex.EncodeToString(salt), Entry: b}
	l, err := json.Marshal(leaf{Hash: s.hash()})
	return line{ID: id, Leaf: string(l), Secret: s}, err
}

func (s *secret) hash() string {
	sum := sha256.Sum256(append([]byte(s.Salt), s.Entry...))
	return hex.EncodeToString(sum[:])
}

// recent is how many of the last entries are known by their ids: at most so many are
// added before their records are deleted.
const recent = 4096

// Log is the log's files: entries, their hashes, and the key that signs.
type Log struct {
	signer note.Signer
	key    string // of who verifies

	mu      sync.Mutex
	entries *os.File
	hashes  *os.File
	at      []int64 // where entries begin, and where the last one ends
	damaged bool    // behind the last entry, or its hashes, stands more
	known   map[string]bool
	ids     []string // of known, in order
	tree    tlog.Tree
	signed  []byte
}

// Open opens the log in a folder, or begins one. Hashes that are lacking are computed. What
// stands behind a line that is none is not read, and cut off once Continue has found that
// nothing of it was ever signed.
func Open(dir string) (*Log, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, unavailable(err)
	}
	l := &Log{known: map[string]bool{}, at: []int64{0}}
	if err := l.openKey(filepath.Join(dir, "key")); err != nil {
		return nil, unavailable(err)
	}
	var err error
	if l.entries, err = os.OpenFile(filepath.Join(dir, "entries"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, unavailable(err)
	}
	if l.hashes, err = os.OpenFile(filepath.Join(dir, "hashes"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, unavailable(errors.Join(err, l.entries.Close()))
	}
	if err := l.load(); err != nil {
		return nil, unavailable(errors.Join(err, l.Close()))
	}
	return l, nil
}

func unavailable(err error) error { return onpath.Errorf(onpath.CodeUnavailable, "the log: %w", err) }

// Close closes the files.
func (l *Log) Close() error { return errors.Join(l.entries.Close(), l.hashes.Close()) }

func (l *Log) openKey(path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		id := make([]byte, 4)
		_, _ = rand.Read(id)
		var private, public string
		if private, public, err = note.GenerateKey(rand.Reader, "onpath-"+hex.EncodeToString(id)); err != nil {
			return err
		}
		b = []byte(private + "\n" + public + "\n")
		err = wholefile.Write(path, b, 0o600)
	}
	if err != nil {
		return err
	}
	var private string
	if _, err := fmt.Sscanf(string(b), "%s\n%s\n", &private, &l.key); err != nil {
		return fmt.Errorf("%s is no key: %w", path, err)
	}
	l.signer, err = note.NewSigner(private)
	return err
}

func (l *Log) load() error {
	info, err := l.hashes.Stat()
	if err != nil {
		return err
	}
	hashed := info.Size() / tlog.HashSize
	r := bufio.NewReaderSize(l.entries, 1<<20)
	var lines []line // without hashes
	first := int64(0)
	for {
		b, err := r.ReadBytes('\n')
		var one line
		hasHash, isLine := tlog.StoredHashCount(l.size()+1) <= hashed, false
		if hasHash {
			one.ID, isLine = idOf(b)
		} else {
			isLine = json.Unmarshal(b, &one) == nil
		}
		if errors.Is(err, io.EOF) || err == nil && !isLine {
			l.damaged = len(b) > 0
			break
		}
		if err != nil {
			return err
		}
		l.at = append(l.at, l.at[len(l.at)-1]+int64(len(b)))
		l.note(one.ID)
		if hasHash {
			first = l.size()
			continue
		}
		if lines = append(lines, one); len(lines) >= recent {
			if err := l.addHashes(first, lines); err != nil {
				return err
			}
			first, lines = first+int64(len(lines)), nil
		}
	}
	if err := l.addHashes(first, lines); err != nil {
		return err
	}
	// A copy that was made while entries came may have hashes of more than it has.
	l.damaged = l.damaged || hashed > tlog.StoredHashCount(l.size())
	return l.sign(l.size())
}

// idOf reads of a line no more than its id, and whether it is one: a log of a million
// entries is read so in a third of the time.
func idOf(b []byte) (string, bool) {
	rest, ok := bytes.CutPrefix(b, []byte(`{"id":"`))
	if id, _, found := bytes.Cut(rest, []byte{'"'}); ok && found && !bytes.Contains(id, []byte{'\\'}) {
		return string(id), json.Valid(b)
	}
	var x line
	err := json.Unmarshal(b, &x)
	return x.ID, err == nil
}

// cut takes away what stands behind the last entry: what a crash has left there, of which
// the records are still in the store.
func (l *Log) cut() error {
	if !l.damaged {
		return nil
	}
	l.damaged = false
	return errors.Join(l.entries.Truncate(l.at[len(l.at)-1]), l.hashes.Truncate(tlog.StoredHashCount(l.size())*tlog.HashSize))
}

func (l *Log) note(id string) {
	l.known[id] = true
	if l.ids = append(l.ids, id); len(l.ids) > 4*recent {
		for _, old := range l.ids[:2*recent] {
			delete(l.known, old)
		}
		l.ids = slices.Clone(l.ids[2*recent:])
	}
}

// size is the number of entries. Callers hold mu.
func (l *Log) size() int64 { return int64(len(l.at) - 1) }

// append adds entries that are not there yet and signs the tree.
func (l *Log) append(lines []line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines = slices.DeleteFunc(lines, func(x line) bool { return l.known[x.ID] })
	if len(lines) == 0 {
		return nil
	}
	if err := l.cut(); err != nil {
		return err
	}
	var b []byte
	at := l.at[len(l.at)-1]
	var ends []int64
	for i := range lines {
		j, err := json.Marshal(&lines[i])
		if err != nil {
			return err
		}
		b = append(append(b, j...), '\n')
		ends = append(ends, at+int64(len(b)))
	}
	if _, err := l.entries.WriteAt(b, at); err != nil {
		return errors.Join(err, l.entries.Truncate(at))
	}
	if err := l.entries.Sync(); err != nil {
		return errors.Join(err, l.entries.Truncate(at))
	}
	if err := l.addHashes(l.size(), lines); err != nil {
		return errors.Join(err, l.entries.Truncate(at), l.hashes.Truncate(tlog.StoredHashCount(l.size())*tlog.HashSize))
	}
	l.at = append(l.at, ends...)
	for i := range lines {
		l.note(lines[i].ID)
	}
	return l.sign(l.size())
}

// addHashes adds those of entries from n on.
func (l *Log) addHashes(n int64, lines []line) error {
	if len(lines) == 0 {
		return nil
	}
	from := tlog.StoredHashCount(n)
	var more []tlog.Hash
	read := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(at))
		for i, k := range at {
			if k >= from {
				out[i] = more[k-from]
			} else if _, err := l.hashes.ReadAt(out[i][:], k*tlog.HashSize); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
	for i := range lines {
		h, err := tlog.StoredHashes(n+int64(i), []byte(lines[i].Leaf), read)
		if err != nil {
			return err
		}
		more = append(more, h...)
	}
	b := make([]byte, 0, len(more)*tlog.HashSize)
	for _, h := range more {
		b = append(b, h[:]...)
	}
	_, err := l.hashes.WriteAt(b, from*tlog.HashSize)
	return errors.Join(err, l.hashes.Sync())
}

// sign makes the checkpoint of the first n entries. Callers hold mu, or are alone.
func (l *Log) sign(n int64) (err error) {
	t := tlog.Tree{N: n}
	if t.Hash, err = l.hash(n); err != nil {
		return err
	}
	signed, err := note.Sign(&note.Note{Text: tlogtiles.Checkpoint(l.signer.Name(), t)}, l.signer)
	if err == nil {
		l.tree, l.signed = t, signed
	}
	return err
}

// hash is that of the first n entries.
func (l *Log) hash(n int64) (tlog.Hash, error) {
	if n == 0 {
		return sha256.Sum256(nil), nil
	}
	return tlog.TreeHash(n, tlog.HashReaderFunc(l.readHashes))
}

func (l *Log) readHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, k := range at {
		if _, err := l.hashes.ReadAt(out[i][:], k*tlog.HashSize); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Key is what who verifies the log needs.
func (l *Log) Key() string { return l.key }

// Checkpoint is the newest one, signed; nil where the files are not those signed last.
func (l *Log) Checkpoint() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.signed
}

// Tile is what is served at a path below tile/.
func (l *Log) Tile(path string) ([]byte, error) {
	t, entries, ok := tlogtiles.ParsePath(path)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ok || t.N > l.tree.N || (t.N<<tlogtiles.Height+int64(t.W))<<(tlogtiles.Height*t.L) > l.tree.N || t.L > 7 {
		return nil, onpath.Errorf(onpath.CodeNotFound, "there is no %s in a log of %d entries", path, l.tree.N)
	}
	if !entries {
		return tlog.ReadTileData(t, tlog.HashReaderFunc(l.readHashes))
	}
	lines, err := l.read(t.N<<tlogtiles.Height, t.W)
	if err != nil {
		return nil, err
	}
	var out []byte
	for i := range lines {
		out = tlogtiles.AppendEntry(out, []byte(lines[i].Leaf))
	}
	return out, nil
}

// read reads n lines. Callers hold mu.
func (l *Log) read(from int64, n int) ([]line, error) {
	all, err := l.readText(from, n)
	if err != nil {
		return nil, err
	}
	out := make([]line, n)
	for i := range out {
		if out[i], err = parse(all[i], from+int64(i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readText reads n lines as they are. Callers hold mu.
func (l *Log) readText(from int64, n int) ([][]byte, error) {
	b := make([]byte, l.at[from+int64(n)]-l.at[from])
	if _, err := l.entries.ReadAt(b, l.at[from]); err != nil {
		return nil, unavailable(err)
	}
	out := make([][]byte, n)
	for i := range out {
		j := from + int64(i)
		out[i] = b[l.at[j]-l.at[from] : l.at[j+1]-l.at[from]]
	}
	return out, nil
}

func parse(b []byte, number int64) (x line, err error) {
	if err := json.Unmarshal(b, &x); err != nil {
		return x, unavailable(fmt.Errorf("entry %d cannot be read: %w", number, err))
	}
	return x, nil
}

// mostAudited is among how many of the last entries those of a tenant are looked for.
const mostAudited = 200_000

// Audit calls yield for what stands behind the last entries of a tenant ("": of all), the
// latest last, as far as they are among the last mostAudited. Those of a former tenant of that
// name are left out. An entry that is not what the
// log has the hash of is an error. Lines without the tenant's name are not parsed: a tenant
// that asks again and again would have the server do nothing else.
func (l *Log) Audit(tenant string, last int, yield func(onpath.LoggedEntry) error) error {
	var found []int64 // not the entries: many ask at once, and each may ask for many
	size, anew, former := l.sizeNow(), false, false
	for end := size; end > 0 && len(found) < last && size-end < mostAudited && !former; {
		n := min(end, 512)
		list, err := []int64(nil), error(nil)
		if list, anew, former, err = l.ofTenant(tenant, end-n, int(n), anew); err != nil {
			return err
		}
		found = append(found, list...)
		end -= n
	}
	for _, i := range slices.Backward(found[:min(len(found), last)]) {
		l.mu.Lock()
		lines, err := l.read(i, 1)
		l.mu.Unlock()
		if err != nil {
			return err
		}
		e, err := lines[0].open()
		if err != nil {
			return onpath.Errorf(onpath.CodeInternal, "entry %d: %w", i, err)
		}
		if err := yield(onpath.LoggedEntry{Index: i, LogEntry: *e}); err != nil {
			return err
		}
	}
	return nil
}

// ofTenant are the numbers of a tenant's entries among n, the latest first; "": of all. anew
// says that the tenant was created in a later entry, or in one of these. former: what comes
// before is another tenant's, as the one that had the name before was deleted.
func (l *Log) ofTenant(tenant string, from int64, n int, anew bool) (out []int64, isNew, former bool, err error) {
	if tenant == "" {
		for i := range int64(n) {
			out = append(out, from+int64(n)-1-i)
		}
		return out, false, false, nil
	}
	l.mu.Lock()
	lines, err := l.readText(from, n)
	l.mu.Unlock()
	if err != nil {
		return nil, anew, false, err
	}
	itself := onpath.Key{Kind: onpath.KindTenant, Name: tenant}.String()
	for i, b := range slices.Backward(lines) {
		if !bytes.Contains(b, []byte(tenant)) {
			continue
		}
		at := from + int64(i)
		x, err := parse(b, at)
		if err != nil {
			return nil, anew, false, err
		}
		e, err := x.open()
		switch {
		case err != nil:
			return nil, anew, false, onpath.Errorf(onpath.CodeInternal, "entry %d: %w", at, err)
		case e.Tenant == tenant:
			out = append(out, at)
		case e.Object == itself && e.Life == onpath.LogDeleted && anew:
			return out, anew, true, nil
		case e.Object == itself && e.Life == onpath.LogCreated:
			anew = true
		}
	}
	return out, anew, false, nil
}

func (l *Log) sizeNow() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.size()
}

// open gives what a line says, and checks it against what the log has.
func (x *line) open() (*onpath.LogEntry, error) {
	e := new(onpath.LogEntry)
	if x.Secret == nil {
		return e, json.Unmarshal([]byte(x.Leaf), e)
	}
	var has leaf
	if err := json.Unmarshal([]byte(x.Leaf), &has); err != nil {
		return nil, err
	}
	if has.Hash != x.Secret.hash() {
		return nil, errors.New("what stands behind it was changed")
	}
	return e, json.Unmarshal(x.Secret.Entry, e)
}
