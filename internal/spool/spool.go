// Package spool keeps lines on disk, in order and numbered from 1: whoever appends one
// goes on once it is synced, many at a time share one sync. What a killed process had half
// written is cut off at the next start.
package spool

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrFull says that a spool has all the bytes that it may have.
var ErrFull = errors.New("the spool is full")

// segmentBytes is how long a file gets before another is begun.
const segmentBytes = 1 << 20

// Spool is one folder of segments, each a file named by the number of its first line.
type Spool struct {
	dir     string
	most    int64 // bytes in all; Append then fails
	mu      sync.Mutex
	file    *os.File
	written int64 // bytes of file
	total   int64
	next    uint64 // number of the next line
	synced  uint64 // the last line on disk
	syncing bool
	failed  error
	done    *sync.Cond
	changed chan struct{} // closed when synced rises
}

// Open reads what a folder has; it is made if it is not there.
func Open(dir string, most int64) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	s := &Spool{dir: dir, most: most, next: 1, changed: make(chan struct{})}
	s.done = sync.NewCond(&s.mu)
	list, err := s.segments()
	if err != nil {
		return nil, err
	}
	for _, first := range list {
		lines, size, err := s.mend(first)
		if err != nil {
			return nil, err
		}
		s.total += size
		s.next = first + lines
	}
	s.synced = s.next - 1
	return s, nil
}

func (s *Spool) path(first uint64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%020d.jsonl", first))
}

func (s *Spool) segments() (list []uint64, err error) {
	entries, err := os.ReadDir(s.dir)
	for _, e := range entries {
		text, ok := strings.CutSuffix(e.Name(), ".jsonl")
		if n, err := strconv.ParseUint(text, 10, 64); ok && err == nil {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list, err
}

// mend counts the lines of a segment and cuts off half a one.
func (s *Spool) mend(first uint64) (lines uint64, size int64, err error) {
	b, err := os.ReadFile(s.path(first))
	if err != nil {
		return 0, 0, err
	}
	whole := bytes.LastIndexByte(b, '\n') + 1
	if whole < len(b) {
		if err := os.Truncate(s.path(first), int64(whole)); err != nil {
			return 0, 0, err
		}
	}
	return uint64(bytes.Count(b[:whole], []byte{'\n'})), int64(whole), nil
}

// Append writes lines, which have no line breaks in them, and returns the number of the
// last one when all are on disk.
func (s *Spool) Append(lines ...[]byte) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return 0, s.failed
	}
	var text []byte
	for _, l := range lines {
		text = append(append(text, l...), '\n')
	}
	if s.most > 0 && s.total+int64(len(text)) > s.most {
		return 0, ErrFull
	}
	if err := s.write(text); err != nil {
		return 0, err
	}
	s.next += uint64(len(lines))
	last := s.next - 1
	for s.synced < last && s.failed == nil {
		if s.syncing {
			s.done.Wait()
			continue
		}
		s.sync()
	}
	return last, s.failed
}

func (s *Spool) write(text []byte) (err error) {
	for s.syncing && s.written > segmentBytes {
		s.done.Wait() // the file that is being synced is the one to be left
	}
	if s.file != nil && s.written > segmentBytes {
		if s.failed = errors.Join(s.file.Sync(), s.file.Close()); s.failed != nil {
			return s.failed
		}
		s.file = nil
	}
	if s.file == nil {
		flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
		if s.file, err = os.OpenFile(s.path(s.next), flags, 0o640); err != nil {
			return err
		}
		s.written = 0
	}
	if n, err := s.file.Write(text); err != nil {
		if n > 0 { // a full disk takes a part, and more once there is room
			s.failed = s.file.Truncate(s.written)
		}
		return err
	}
	s.written += int64(len(text))
	s.total += int64(len(text))
	return nil
}

// sync puts on disk what was written so far, for all who wait.
func (s *Spool) sync() {
	s.syncing = true
	file, last := s.file, s.next-1
	s.mu.Unlock()
	err := file.Sync()
	s.mu.Lock()
	s.syncing = false
	if err != nil {
		s.failed = err
	} else {
		s.synced = last
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.done.Broadcast()
}

// Last is the number of the last line on disk, and a channel that is closed when there are
// more.
func (s *Spool) Last() (uint64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced, s.changed
}

// Read calls do for the lines on disk behind a number, in order, until it fails.
func (s *Spool) Read(after uint64, do func(n uint64, line []byte) error) error {
	last, _ := s.Last()
	list, err := s.segments()
	if err != nil {
		return err
	}
	for i, first := range list {
		if first > last || i+1 < len(list) && list[i+1] <= after+1 {
			continue
		}
		if err := s.readSegment(first, after, last, do); err != nil {
			return err
		}
	}
	return nil
}

func (s *Spool) readSegment(first, after, last uint64, do func(uint64, []byte) error) error {
	f, err := os.Open(s.path(first))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // dropped meanwhile
	}
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	for n := first; n <= last; n++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if n <= after {
			continue
		}
		if err := do(n, line[:len(line)-1]); err != nil {
			return err
		}
	}
	return nil
}

// Drop removes the segments all of whose lines have numbers up to n.
func (s *Spool) Drop(n uint64) error {
	return s.drop(func(_ uint64, next uint64, _ fs.FileInfo) bool { return next <= n+1 })
}

// Trim removes the oldest segments until no more than some bytes are left, and those
// written last before a time; the one being written stays.
func (s *Spool) Trim(most int64, before time.Time) error {
	return s.drop(func(_, _ uint64, f fs.FileInfo) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.total > most || f.ModTime().Before(before)
	})
}

// drop removes segments from the oldest on, while it may.
func (s *Spool) drop(may func(first, next uint64, f fs.FileInfo) bool) error {
	list, err := s.segments()
	if err != nil {
		return err
	}
	for i, first := range list {
		s.mu.Lock()
		next, whole := s.next, i+1 == len(list) && s.synced+1 == s.next && !s.syncing
		s.mu.Unlock()
		if i+1 < len(list) {
			next = list[i+1]
		}
		info, err := os.Stat(s.path(first))
		if err != nil || !may(first, next, info) {
			return err
		}
		if i+1 == len(list) && !s.finish(whole, next) {
			return nil
		}
		if err := os.Remove(s.path(first)); err != nil {
			return err
		}
		s.mu.Lock()
		s.total -= info.Size()
		s.mu.Unlock()
	}
	return nil
}

// finish ends the segment that is being written, so that it may go: the next line begins
// another. The number of that stands in an empty file, for the next start.
func (s *Spool) finish(whole bool, next uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !whole || s.next != next || s.syncing || s.written < segmentBytes/4 {
		return false
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	f, err := os.OpenFile(s.path(next), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return false
	}
	s.file, s.written = f, 0
	return true
}

// Close closes the file; nobody may append then.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = fs.ErrClosed
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
