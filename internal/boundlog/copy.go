package boundlog

import (
	"bytes"
	"errors"
	"io"
	"os"
)

// both copies a log's last lines, and leaves now at its end. former is nil if there is
// none. However long the log, little of it is in memory at once: w may be slow.
func (v *viewer) both(former, now file) error {
	if v.v.Tail == 0 {
		_, err := now.f.Seek(0, io.SeekEnd)
		return err
	}
	tail := tail{left: v.v.Tail}
	at, err := tail.begin(now.f)
	if err != nil {
		return err
	}
	if former.f != nil && (v.v.Tail < 0 || tail.left > 0) {
		from, err := tail.begin(former.f)
		if err == nil {
			err = v.from(former, from)
		}
		if err != nil {
			return err
		}
	}
	return v.from(now, at)
}

func (v *viewer) from(f file, at int64) error {
	if _, err := f.f.Seek(at, io.SeekStart); err != nil {
		return err
	}
	return v.copy(f.f, f.t)
}

// tail looks for the beginning of a log's last lines, from its end.
type tail struct {
	left int  // lines to be found; < 0: all
	some bool // the end of the log, which begins no line, is behind
}

// begin is where in f, at the latest, the lines begin: at 0 if there are too few.
func (t *tail) begin(f *os.File) (int64, error) {
	if t.left < 0 {
		return 0, nil
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	var buf [32 << 10]byte
	for end > 0 {
		block := buf[:min(end, int64(len(buf)))]
		end -= int64(len(block))
		if _, err := f.ReadAt(block, end); errors.Is(err, io.EOF) {
			return 0, nil // it has been emptied meanwhile
		} else if err != nil {
			return 0, err
		}
		for i := len(block); i > 0; {
			last := i - 1
			if i = bytes.LastIndexByte(block[:i], '\n'); i < 0 {
				t.some = true
				break
			}
			if i == last && !t.some {
				t.some = true
				continue
			}
			t.some = true
			if t.left--; t.left == 0 {
				return end + int64(i) + 1, nil
			}
		}
	}
	return 0, nil
}
