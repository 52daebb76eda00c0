package boundlog

import (
	"bytes"
	"errors"
	"io"
	"os"
	"time"
)

// View says what of a log is shown, and how: as onpath.LogView, which explains it. (Not
// that type itself: the process that keeps a log stays small.)
type View struct {
	Tail       int
	Since      time.Time
	Timestamps bool
}

// stampLayout is how a line's time is written: RFC 3339 in UTC, with milliseconds.
// Where it is not known, noStamp stands.
const (
	stampLayout = "2006-01-02T15:04:05.000Z "
	noStamp     = "- "
)

// viewer copies what is to be seen of a log's files, one after the other.
type viewer struct {
	w   io.Writer
	v   View
	mid bool // what was read last does not end a line
	at  time.Time
	// seen: lines are shown from now on. some: a line was read; known: and of one it is
	// known when it came.
	seen, some, known bool
	out               bytes.Buffer
}

func newViewer(w io.Writer, v View) *viewer {
	return &viewer{w: w, v: v, seen: v.Since.IsZero()}
}

func (v *viewer) plain() bool { return v.v.Since.IsZero() && !v.v.Timestamps }

// copy copies a file from where it is read to its end. It is at once what io.Copy does
// if neither times are to be shown nor lines to be left out.
func (v *viewer) copy(f *os.File, t *times) error {
	if v.plain() {
		_, err := io.Copy(v.w, f)
		return err
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := f.Read(buf)
		v.chunk(buf[:n], at, t)
		at += int64(n)
		if _, err := v.out.WriteTo(v.w); err != nil {
			return err
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// chunk takes what stands at an offset of a file.
func (v *viewer) chunk(b []byte, at int64, t *times) {
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n') + 1
		ends := n > 0
		if !ends {
			n = len(b)
		}
		if !v.mid {
			v.line(t.of(at))
		}
		if v.seen {
			v.out.Write(b[:n])
		}
		v.mid = !ends
		b, at = b[n:], at+int64(n)
	}
}

// line begins one that came at a time, zero if nobody knows.
func (v *viewer) line(at time.Time) {
	v.some = true
	if !at.IsZero() {
		v.at, v.known = at, true
	}
	v.seen = v.seen || v.known && !v.at.Before(v.v.Since)
	switch {
	case !v.seen || !v.v.Timestamps:
	case v.known:
		v.out.WriteString(v.at.UTC().Format(stampLayout))
	default:
		v.out.WriteString(noStamp)
	}
}

// OwnTimes passes on the lines of a log whose lines begin with the time when they were
// written ("TIME …" or "time=TIME …", RFC 3339): those since a time, all if that is zero.
func OwnTimes(w io.Writer, since time.Time) io.Writer {
	if since.IsZero() {
		return w
	}
	return &ownTimes{w: w, since: since}
}

type ownTimes struct {
	w     io.Writer
	since time.Time
	rest  []byte // of a line that has not ended
	seen  bool
}

// maxOwn is how much of a line is looked at.
const maxOwn = 64

func (o *ownTimes) Write(b []byte) (int, error) {
	all := len(b)
	for !o.seen && len(b) > 0 {
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b)
		}
		begins := append(bytes.Clone(o.rest), b[:min(n, maxOwn)]...)
		switch {
		case !ownTime(begins).Before(o.since):
			o.seen = true
			if _, err := o.w.Write(o.rest); err != nil {
				return 0, err
			}
			continue
		case b[n-1] == '\n':
			o.rest = nil
		default:
			o.rest = begins[:min(len(begins), maxOwn)]
		}
		b = b[n:]
	}
	if len(b) > 0 {
		if _, err := o.w.Write(b); err != nil {
			return 0, err
		}
	}
	return all, nil
}

// ownTime is the time that a line begins with, zero if it does not.
func ownTime(line []byte) time.Time {
	word, _, _ := bytes.Cut(line, []byte(" "))
	t, err := time.Parse(time.RFC3339, string(bytes.TrimPrefix(word, []byte("time="))))
	if err != nil {
		return time.Time{}
	}
	return t
}

// CutTime takes a line that was shown with Timestamps apart. Lines with a time of their
// own stay whole.
func CutTime(line []byte) (at time.Time, text []byte) {
	if rest, ok := bytes.CutPrefix(line, []byte(noStamp)); ok {
		return at, rest
	}
	if n := len(stampLayout); len(line) >= n {
		if t, err := time.Parse(stampLayout, string(line[:n])); err == nil {
			return t, line[n:]
		}
	}
	return ownTime(line), line
}
