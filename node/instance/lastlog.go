package instance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/boundlog"
	"github.com/onpath/onpath/internal/wholefile"
)

// maxLastLog is how much is kept of what a run wrote that has ended, in bytes.
const maxLastLog = 1 << 20

// withTimes begins a kept log whose lines have their times; those of earlier versions do
// not.
const withTimes = "onpath: lines with times\n"

// maxLastWords bounds what of it is told in an instance's message, in bytes.
const maxLastWords = 300

// lastLogTimeout bounds reading a log: an ended instance waits for it.
const lastLogTimeout = 5 * time.Second

// logs keeps what an instance prints, and tells of it.
type logs struct{ self }

// keepLog saves what the present run wrote, before the runtime deletes it: why a
// process was killed is best known from its own words.
func (in logs) keepLog(ctx context.Context) {
	rt, err := in.runtime()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLogTimeout)
	defer cancel()
	var t logEnd
	if err = rt.Logs(ctx, in.id, onpath.LogView{Tail: -1, Timestamps: true}, false, &t); err == nil {
		err = wholefile.WriteLightly(lastLog(in.s.part.Dir, in.id), append([]byte(withTimes), t.lines()...), 0o600)
	}
	if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
		in.s.part.Log.Warn("the log of the run that ended is lost", "instance", in.id, "err", err)
	}
}

// lastWords are the last lines that an ended process wrote, if they are fit to be
// shown: mostly they say why the process ended.
func (in logs) lastWords(ctx context.Context) string {
	rt, err := in.runtime()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLogTimeout)
	defer cancel()
	var t logEnd
	if err := rt.Logs(ctx, in.id, onpath.LogView{Tail: 3}, false, &t); err != nil {
		return ""
	}
	return oneLine(string(t.data))
}

// oneLine is what a program printed, in one line of at most maxLastWords; "" if it is no text.
func oneLine(printed string) string {
	var lines []string
	for l := range strings.Lines(strings.ToValidUTF8(printed, "?")) {
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, l)
		}
	}
	line := strings.Join(lines, " / ")
	if strings.ContainsFunc(line, unicode.IsControl) {
		return "" // a binary's, or a terminal's
	}
	if len(line) > maxLastWords {
		line = "…" + strings.ToValidUTF8(line[len(line)-maxLastWords:], "")
	}
	return line
}

// previousLog copies what v says of the run before.
func (in logs) previousLog(v onpath.LogView, w io.Writer) error {
	data, err := os.ReadFile(lastLog(in.s.part.Dir, in.id))
	if errors.Is(err, fs.ErrNotExist) {
		f := in.st.get()
		return onpath.Errorf(onpath.CodeNotFound, "instance %s has had no earlier run on node %s", f.Name(), in.s.part.Node)
	}
	if err != nil {
		return err
	}
	data, timed := bytes.CutPrefix(data, []byte(withTimes))
	if !timed && !v.Since.IsZero() {
		return onpath.Errorf(onpath.CodeUnsupported,
			"it is not known when the run before printed its lines: it ended under an earlier version of onpath")
	}
	lines := bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	if v.Tail >= 0 && v.Tail < len(lines) {
		lines = lines[len(lines)-v.Tail:]
	}
	var out bytes.Buffer
	shown := v.Since.IsZero()
	for _, l := range lines {
		var at time.Time
		text := l
		if timed {
			at, text = boundlog.CutTime(l)
		}
		if shown = shown || !at.IsZero() && !at.Before(v.Since); !shown {
			continue
		}
		switch {
		case !v.Timestamps:
			l = text
		case !timed:
			l = append([]byte("- "), l...)
		}
		out.Write(l)
	}
	if len(data) > 0 && out.Len() > 0 {
		out.WriteByte('\n')
	}
	_, err = out.WriteTo(w)
	return err
}

// logEnd keeps the end of what is written to it.
type logEnd struct {
	data []byte
	cut  bool
}

func (t *logEnd) Write(b []byte) (int, error) {
	t.data = append(t.data, b...)
	if over := len(t.data) - maxLastLog; over > 0 {
		t.data, t.cut = append([]byte(nil), t.data[over:]...), true
	}
	return len(b), nil
}

// lines begins with a whole line.
func (t *logEnd) lines() []byte {
	if i := bytes.IndexByte(t.data, '\n'); t.cut && i >= 0 {
		return t.data[i+1:]
	}
	return t.data
}
