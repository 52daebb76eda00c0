// Package boundlog keeps what a program prints in two files of bounded size,
// however fast it prints.
//
// The program's output ends in pipes. A process of its own reads them, so that
// neither the end of the node agent nor a full disk stops the program: what
// cannot be kept is left out, and how much that was stands in the log. That
// process is the running program once more; containerd's shim starts it
// ("binary://") and it ends when the pipes do.
package boundlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The files in a log's directory.
const (
	Now     = "log"          // what is written to
	Former  = "log.1"        // what was before it, and beside each, when its lines came
	leftOut = "log.left-out" // how much is missing in all, and why last
)

// Rate is how much is kept in the long run, in bytes a second. As much as one file
// holds may come at once, and minBurst where files are small.
const (
	Rate     = 4 << 20
	minBurst = Rate / 2
)

// resume is how much must be allowed again before the log goes on: it then has
// stretches of whole lines, not a line here and there.
const resume = Rate / 4

// retry is how long nothing is written after a write failed.
const retry = time.Second

// File is a log. Its two files never hold more than limit each, and when their lines came
// stands beside them.
type File struct {
	dir     string
	limit   int64
	clock   func() time.Time
	f       *os.File // nil: it could not be made
	size    int64
	midLine bool // what was written last does not end a line
	marks   marks

	burst   int64
	allowed int64 // bytes that may be written now
	at      time.Time
	notTill time.Time // a write has failed

	missing  int64  // since something was kept last
	why      string // it is missing
	total    int64  // missing in all
	last     string // why, the last time
	note     *os.File
	notedAt  time.Time
	notedSum int64
}

// Open begins a log in a directory; limit is that of one file, in bytes.
func Open(dir string, limit int64, clock func() time.Time) (*File, error) {
	l := &File{dir: dir, limit: limit, clock: clock, burst: max(limit, minBurst), at: clock()}
	l.allowed = l.burst
	if err := l.begin(); err != nil {
		return nil, err
	}
	var err error
	if l.note, err = os.OpenFile(l.path(leftOut), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
		return nil, err
	}
	return l, l.writeNote() // now, while there is room for it
}

func (l *File) path(name string) string { return filepath.Join(l.dir, name) }

// begin starts an empty file.
func (l *File) begin() (err error) {
	l.f, err = os.OpenFile(l.path(Now), os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o600)
	l.size, l.midLine = 0, false
	if err == nil {
		l.marks.begin(l.path(Now+timesSuffix), l.f)
	}
	return err
}

// rotate makes the file the former one, which needs no space: the one that was
// former goes.
func (l *File) rotate() error {
	if l.f != nil {
		if err := os.Rename(l.path(Now), l.path(Former)); err != nil {
			return err
		}
		_ = l.f.Close()
		l.f = nil
		l.marks.close()
		if err := os.Rename(l.path(Now+timesSuffix), l.path(Former+timesSuffix)); err != nil {
			_ = os.Remove(l.path(Former + timesSuffix)) // of the one that is gone
		}
	}
	return l.begin()
}

// Keep writes p, or leaves it out and counts it. full tells that it left it out.
func (l *File) Keep(p []byte) (full bool) {
	now := l.clock()
	l.allowed = min(l.burst, l.allowed+int64(now.Sub(l.at).Seconds()*Rate))
	l.at = now
	need := int64(len(p))
	if l.missing > 0 {
		need += resume
	}
	if now.Before(l.notTill) || l.allowed < need {
		l.leave(int64(len(p)), fmt.Sprintf("it writes more than %d MiB a second", Rate>>20))
		return true
	}
	l.allowed -= int64(len(p))
	rest, err := l.write(l.resumed(p))
	if err != nil {
		l.notTill = now.Add(retry)
		l.why = ""
		l.leave(int64(rest), reason(err))
	}
	return err != nil
}

// reason is an error without the path, which is known.
func reason(err error) string {
	if e := unix.Errno(0); errors.As(err, &e) {
		return e.Error()
	}
	return err.Error()
}

// leave counts what is left out. The first reason stands until something is kept.
func (l *File) leave(n int64, why string) {
	if l.why == "" {
		l.why = why
	}
	l.last = l.why
	l.missing += n
	l.total += n
	l.Note(false)
}

// resumed is p with a line before it that says what is missing, if anything is;
// it then begins with a whole line.
func (l *File) resumed(p []byte) []byte {
	if l.missing == 0 {
		return p
	}
	if i := bytes.IndexByte(p, '\n'); i >= 0 {
		l.leave(int64(i+1), l.why)
		p = p[i+1:]
	}
	line := fmt.Sprintf("onpath: %d bytes are left out here: %s\n", l.missing, l.why)
	if l.midLine {
		line = "\n" + line
	}
	return append([]byte(line), p...)
}

// write gives how much of p it could not write.
func (l *File) write(p []byte) (rest int, err error) {
	for len(p) > 0 {
		if l.f == nil || l.size >= l.limit || l.marks.size >= maxTimes(l.limit) {
			if err := l.rotate(); err != nil {
				return len(p), err
			}
		}
		part := p[:min(int64(len(p)), l.limit-l.size)]
		l.mark(part)
		n, err := l.f.Write(part)
		l.size += int64(n)
		if n > 0 {
			l.midLine = p[n-1] != '\n'
		}
		p = p[n:]
		if err != nil {
			return len(p), err
		}
	}
	l.missing, l.why = 0, ""
	return 0, nil
}

// mark notes the time of the first line that begins in what is written next.
func (l *File) mark(p []byte) {
	begins := 0
	if l.midLine {
		begins = bytes.IndexByte(p, '\n') + 1
		if begins == 0 || begins == len(p) {
			return
		}
	}
	l.marks.add(l.size+int64(begins), l.at)
}

// Note saves how much is left out in all, once a second at most unless it must.
func (l *File) Note(must bool) {
	if l.total == l.notedSum || !must && l.clock().Sub(l.notedAt) < time.Second {
		return
	}
	_ = l.writeNote()
}

// writeNote overwrites the note in place: its space is there, also on a full disk.
func (l *File) writeNote() error {
	l.notedAt, l.notedSum = l.clock(), l.total
	_, err := l.note.WriteAt(fmt.Appendf(nil, "%-100s\n", fmt.Sprintf("%d %s", l.total, l.last)), 0)
	return err
}

// LeftOut is how much a log in dir does not have, and why not.
func LeftOut(dir string) (bytes int64, why string) {
	data, err := os.ReadFile(filepath.Join(dir, leftOut))
	if err != nil {
		return 0, "" // an older version's, or deleted
	}
	sum, why, _ := strings.Cut(strings.TrimSpace(string(data)), " ")
	bytes, _ = strconv.ParseInt(sum, 10, 64)
	return bytes, why
}
