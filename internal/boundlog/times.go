package boundlog

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Beside each of a log's two files stands one that says when its lines came: records of
// 16 bytes, each the offset of a line and a time. A line without one came at the time of
// the line before. The first record names the log's inode, because the two files of a
// pair change their names one after the other.
const (
	timesSuffix = ".times"
	recordSize  = 16
)

// TimesShare says how much the times take: at most this part of the log's limit, and 64
// KiB where that is less. Where lines are so short, and so slow, that the times reach it
// first, the log goes on in the next file.
const TimesShare = 4

const minTimes = 64 << 10

// apart is how far the times of two records are apart at least.
const apart = time.Millisecond

func maxTimes(limit int64) int64 { return max(limit/TimesShare, minTimes) }

type record struct {
	offset int64 // in the log; the inode, in the first record
	at     int64 // Unix time in nanoseconds; in the first record 0
}

func (r record) bytes() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(r.offset))
	return binary.LittleEndian.AppendUint64(b, uint64(r.at))
}

func recordOf(b []byte) record {
	return record{offset: int64(binary.LittleEndian.Uint64(b)), at: int64(binary.LittleEndian.Uint64(b[8:]))}
}

// marks writes the times of one file of a log. Without room on the disk times are
// missing, and nothing else.
type marks struct {
	f    *os.File // nil: there is none yet
	size int64
	last time.Time
}

// begin starts the times of a file that is empty.
func (m *marks) begin(path string, log *os.File) {
	m.close()
	info, err := log.Stat()
	if err != nil {
		return
	}
	if m.f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
		m.f = nil
		return
	}
	m.put(record{offset: int64(info.Sys().(*syscall.Stat_t).Ino)})
}

func (m *marks) close() {
	if m.f != nil {
		_ = m.f.Close()
	}
	*m = marks{}
}

// put appends a record, or leaves it out.
func (m *marks) put(r record) bool {
	if n, err := m.f.WriteAt(r.bytes(), m.size); err != nil || n != recordSize {
		return false
	}
	m.size += recordSize
	return true
}

// add notes when a line came that begins at an offset.
func (m *marks) add(offset int64, now time.Time) {
	if m.f == nil || m.size > 0 && now.Sub(m.last).Abs() < apart {
		return
	}
	if m.put(record{offset, now.UnixNano()}) {
		m.last = now
	}
}

// times reads when the lines of one file of a log came, in the order of the lines.
type times struct {
	f    *os.File
	r    *bufio.Reader
	next record // not reached yet
	has  bool   // next is there
	at   time.Time
}

// timesOf finds the times of a file of the log in dir; nil if there are none.
func timesOf(dir string, log *os.File) *times {
	info, err := log.Stat()
	if err != nil {
		return nil
	}
	for _, name := range []string{Now, Former, Now} { // what was log is log.1 a moment later
		f, err := os.Open(filepath.Join(dir, name+timesSuffix))
		if err != nil {
			continue
		}
		t := &times{f: f, r: bufio.NewReaderSize(f, 32<<10)}
		if t.read(); t.has && uint64(t.next.offset) == info.Sys().(*syscall.Stat_t).Ino {
			t.has = false
			return t
		}
		f.Close()
	}
	return nil
}

func (t *times) close() {
	if t != nil {
		t.f.Close()
	}
}

// read takes the next record, if it is there: of a log that grows it may come later.
func (t *times) read() {
	b, err := t.r.Peek(recordSize)
	if err != nil && !errors.Is(err, io.EOF) || len(b) < recordSize {
		return
	}
	t.next, t.has = recordOf(b), true
	_, _ = t.r.Discard(recordSize)
}

// of is when the line came that begins at an offset, zero if nobody knows. Offsets do
// not fall.
func (t *times) of(offset int64) time.Time {
	if t == nil {
		return time.Time{}
	}
	for {
		if !t.has {
			t.read()
		}
		if !t.has || t.next.offset > offset {
			return t.at
		}
		t.at, t.has = time.Unix(0, t.next.at), false
	}
}
