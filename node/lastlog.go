package node

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
	"github.com/onpath/onpath/internal/wholefile"
)

// maxLastLog is how much is kept of what a run wrote that has ended, in bytes.
const maxLastLog = 1 << 20

// maxLastWords bounds what of it is told in an instance's message, in bytes.
const maxLastWords = 300

// lastLogTimeout bounds reading a log: an ended instance waits for it.
const lastLogTimeout = 5 * time.Second

// keepLog saves what the present run wrote, before the runtime deletes it: why a
// process was killed is best known from its own words.
func (in *instance) keepLog(ctx context.Context) {
	rt, err := in.runtime()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLogTimeout)
	defer cancel()
	var t logEnd
	if err = rt.Logs(ctx, in.id, -1, false, &t); err == nil {
		err = wholefile.WriteLightly(in.a.state.lastLog(in.id), t.lines(), 0o600)
	}
	if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
		in.a.log.Warn("the log of the run that ended is lost", "instance", in.id, "err", err)
	}
}

// lastWords are the last lines that an ended process wrote, if they are fit to be
// shown: mostly they say why the process ended.
func (in *instance) lastWords(ctx context.Context) string {
	rt, err := in.runtime()
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLogTimeout)
	defer cancel()
	var t logEnd
	if err := rt.Logs(ctx, in.id, 3, false, &t); err != nil {
		return ""
	}
	var lines []string
	for l := range strings.Lines(strings.ToValidUTF8(string(t.data), "?")) {
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

// previousLog copies the last n lines (negative: all) of the run before.
func (in *instance) previousLog(n int, w io.Writer) error {
	data, err := os.ReadFile(in.a.state.lastLog(in.id))
	if errors.Is(err, fs.ErrNotExist) {
		return onpath.Errorf(onpath.CodeNotFound, "instance %s/%s has had no earlier run on node %s", in.plan.Tenant, in.plan.Name, in.a.opt.Name)
	}
	if err != nil {
		return err
	}
	if lines := bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")); n >= 0 && n < len(lines) {
		data = append(bytes.Join(lines[len(lines)-n:], nil), '\n')
	}
	if n == 0 {
		return nil
	}
	_, err = w.Write(data)
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
