// Package blob keeps bytes by name in one file of a bounded size: a cache, whose oldest
// entries make room. What is being written can be read at once, as far as it is there.
//
// The file is a row of blocks of the same size, each with a header that names its blob, its
// place in it and the sums of both. A blob counts once its first block is written, which is
// written last and says how much there is: after a crash what is not whole is not there. The
// sum of a block is compared whenever it is read.
package blob

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// File is where a store keeps its blocks.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Seeker
}

// Bounds of one blob.
const (
	MaxKey   = 512
	MaxAbout = 4 << 10
)

// Errors of a store.
var (
	ErrFull    = errors.New("the disk has no room for it")
	ErrGone    = errors.New("the blob is gone")
	ErrDamaged = errors.New("the disk gives other bytes than were written")
	ErrBusy    = errors.New("the blob is being written")
)

// Store keeps blobs. All of it may be called by several goroutines.
type Store struct {
	f      File
	blocks int

	mu     sync.Mutex
	free   []int32
	used   int    // blocks ever given out: all behind are free, too
	dead   int    // of them, for which the disk has no room
	end    int32  // behind the last block that was written
	lastID uint64 // of a blob
	byKey  map[string]*Blob
	order  *list.List // of blobs that are whole, the one not asked for longest in front
	stat   Status
}

// Status is what a store has.
type Status struct {
	Blobs   int
	Blocks  int    // in use
	Evicted uint64 // for want of room
	Damaged uint64
}

// Blob is one entry.
type Blob struct {
	s     *Store
	id    uint64
	key   string
	about []byte
	// under the store's lock:
	chain   []int32 // the first is the head's
	size    int64
	tail    []byte // of one that is being written: what fills no block yet
	whole   bool
	gone    bool
	sealing bool // its head is being written: who does that frees the head's block
	readers int
	place   *list.Element
	changed chan struct{} // closed when there is more
}

// Open reads what a file has. The file may grow to size bytes.
func Open(f File, size int64) (*Store, error) {
	s := &Store{f: f, blocks: int(size / blockSize), byKey: map[string]*Blob{}, order: list.New()}
	if s.blocks < 2 {
		return nil, fmt.Errorf("open the blobs: %d bytes are too few", size)
	}
	if err := s.scan(); err != nil {
		return nil, fmt.Errorf("open the blobs: %w", err)
	}
	return s, nil
}

// Status says what there is.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stat
	st.Blobs, st.Blocks = len(s.byKey), s.used-s.dead-len(s.free)
	return st
}

// Find gives a blob, also one that is being written; nil: there is none.
func (s *Store) Find(key string) *Blob {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.byKey[key]
	if b != nil && b.place != nil {
		s.order.MoveToBack(b.place)
	}
	return b
}

// Delete lets go of a blob; who reads it reads no further.
func (s *Store) Delete(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.byKey[key]
	if b == nil {
		return false
	}
	s.remove(b)
	return true
}

// remove takes a blob away, also from the disk. Callers hold mu.
func (s *Store) remove(b *Blob) {
	if b.gone {
		return
	}
	b.gone = true
	if s.byKey[b.key] == b {
		delete(s.byKey, b.key)
	}
	if b.place != nil {
		s.order.Remove(b.place)
		b.place = nil
	}
	if b.whole {
		_, _ = s.f.WriteAt(make([]byte, headerSize), int64(b.chain[0])*blockSize)
	}
	free := b.chain
	if b.sealing {
		free = free[1:]
	}
	s.free = append(s.free, free...)
	b.chain, b.tail = nil, nil
	b.notice()
}

// notice wakes who waits for more. Callers hold mu.
func (b *Blob) notice() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// block finds one that is free, and has the oldest blobs make room: first such as nobody
// reads. Callers hold mu.
func (s *Store) block() (int32, error) {
	for {
		if n := len(s.free); n > 0 {
			at := s.free[n-1]
			s.free = s.free[:n-1]
			return at, nil
		}
		if s.used < s.blocks {
			s.used++
			return int32(s.used - 1), nil
		}
		oldest := s.order.Front()
		for e := oldest; e != nil; e = e.Next() {
			if e.Value.(*Blob).readers == 0 {
				oldest = e
				break
			}
		}
		if oldest == nil {
			return 0, ErrFull
		}
		s.stat.Evicted++
		s.remove(oldest.Value.(*Blob))
	}
}

// About are the words that were stored with it.
func (b *Blob) About() []byte { return b.about }

// Size is how many bytes are there, and whether no more come.
func (b *Blob) Size() (n int64, whole bool) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	return b.size, b.whole
}

// Hold has the blob stay while it is read, as far as there is room elsewhere; release ends it.
func (b *Blob) Hold() (release func()) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.readers++
	return sync.OnceFunc(func() {
		b.s.mu.Lock()
		defer b.s.mu.Unlock()
		b.readers--
	})
}

// ReadAt reads from an offset on, and waits for bytes that are still to be written. io.EOF:
// the blob ends there.
func (b *Blob) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	for {
		n, changed, err := b.read(p, off)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// read reads from one block; 0 bytes: they are still to come.
func (b *Blob) read(p []byte, off int64) (int, <-chan struct{}, error) {
	s := b.s
	s.mu.Lock()
	switch {
	case b.gone:
		s.mu.Unlock()
		return 0, nil, ErrGone
	case off >= b.size && b.whole:
		s.mu.Unlock()
		return 0, nil, io.EOF
	case off >= b.size:
		changed := b.changed
		s.mu.Unlock()
		return 0, changed, nil
	}
	index := off / payload
	if 1+index >= int64(len(b.chain)) {
		n := copy(p, b.tail[off-index*payload:])
		s.mu.Unlock()
		return n, nil, nil
	}
	at, id := b.chain[1+index], b.id
	s.mu.Unlock()
	body, err := s.readBlock(at, id, uint32(1+index))
	if err == nil {
		return copy(p, body[off-index*payload:]), nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.gone { // its block became another's meanwhile
		return 0, nil, ErrGone
	}
	s.stat.Damaged++
	s.remove(b)
	return 0, nil, err
}

// Writer writes a new blob.
type Writer struct {
	b    *Blob
	done bool
}

// Create begins a blob. Find finds it from now on; what had its name is let go.
func (s *Store) Create(key string, about []byte) (*Writer, error) {
	if len(key) > MaxKey || len(about) > MaxAbout {
		return nil, fmt.Errorf("a name has at most %d bytes, the words about a blob %d", MaxKey, MaxAbout)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.byKey[key]; old != nil {
		if !old.whole {
			return nil, ErrBusy
		}
		s.remove(old)
	}
	at, err := s.block()
	if err != nil {
		return nil, err
	}
	s.lastID++
	b := &Blob{s: s, id: s.lastID, key: key, about: slices.Clone(about), chain: []int32{at}, changed: make(chan struct{})}
	s.byKey[key] = b
	return &Writer{b: b}, nil
}

// Blob is what is being written.
func (w *Writer) Blob() *Blob { return w.b }

// Write adds bytes.
func (w *Writer) Write(p []byte) (n int, err error) {
	for n < len(p) {
		m, err := w.add(p[n:])
		if n += m; err != nil {
			w.Drop()
			return n, err
		}
	}
	return n, nil
}

// add takes what fills the block at hand, and writes the block when it is full.
func (w *Writer) add(p []byte) (int, error) {
	b, s := w.b, w.b.s
	s.mu.Lock()
	if b.gone {
		s.mu.Unlock()
		return 0, ErrGone
	}
	n := min(len(p), payload-len(b.tail))
	b.tail = append(b.tail, p[:n]...)
	b.size += int64(n)
	b.notice()
	full := len(b.tail) == payload
	s.mu.Unlock()
	if !full {
		return n, nil
	}
	return n, w.flush()
}

// diskFull notes that the disk did not take a block. One that lies behind the end of the file is
// not tried again, nor any further one: older blobs make room. Callers hold mu.
func (s *Store) diskFull(at int32) (again bool) {
	if at < s.end {
		s.free = append(s.free, at)
		return false
	}
	s.blocks = s.used
	s.dead++
	return true
}

// flush writes the block at hand.
func (w *Writer) flush() error {
	for {
		again, err := w.flushOnce()
		if !again {
			return err
		}
	}
}

func (w *Writer) flushOnce() (again bool, err error) {
	b, s := w.b, w.b.s
	s.mu.Lock()
	if b.gone {
		s.mu.Unlock()
		return false, ErrGone
	}
	at, err := s.block()
	tail, index := b.tail, uint32(len(b.chain))
	s.mu.Unlock()
	if err != nil {
		return false, err
	}
	err = s.writeBlock(at, b.id, index, tail)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		return s.diskFull(at), err
	case b.gone:
		s.free = append(s.free, at)
		return false, ErrGone
	}
	s.end = max(s.end, at+1)
	b.chain, b.tail = append(b.chain, at), nil
	return false, nil
}

// Whole says that there are all bytes: from now on the blob outlives a crash.
func (w *Writer) Whole() error {
	b, s := w.b, w.b.s
	if w.done {
		return ErrGone
	}
	w.done = true
	s.mu.Lock()
	rest := len(b.tail)
	s.mu.Unlock()
	var err error
	if rest > 0 {
		err = w.flush()
	}
	for again := err == nil; again; {
		again, err = w.seal()
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(b)
	}
	return err
}

func (w *Writer) seal() (again bool, err error) {
	b, s := w.b, w.b.s
	s.mu.Lock()
	if b.gone {
		s.mu.Unlock()
		return false, ErrGone
	}
	at, head := b.chain[0], headOf(b)
	b.sealing = true
	s.mu.Unlock()
	err = s.writeBlock(at, b.id, 0, head)
	s.mu.Lock()
	defer s.mu.Unlock()
	b.sealing = false
	switch {
	case b.gone:
		_, _ = s.f.WriteAt(make([]byte, headerSize), int64(at)*blockSize)
		s.free = append(s.free, at)
		return false, ErrGone
	case err != nil:
		if again = s.diskFull(at); again {
			b.chain[0], err = s.block()
			again = err == nil
		}
		if !again {
			b.chain = b.chain[1:]
		}
		return again, err
	}
	s.end = max(s.end, at+1)
	b.whole = true
	b.place = s.order.PushBack(b)
	b.notice()
	return false, nil
}

// Drop gives up what is being written.
func (w *Writer) Drop() {
	w.b.s.mu.Lock()
	defer w.b.s.mu.Unlock()
	w.done = true
	if !w.b.whole {
		w.b.s.remove(w.b)
	}
}
