package cli

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/onpath/onpath/cli/terminal"
)

// progress shows one changing line on a terminal, and where output goes to a file each
// line once: what starts and fails again and again says so twice, not for two minutes.
type progress struct {
	w        io.Writer
	terminal bool
	last     string
	said     map[string]bool // in a file
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w: w, terminal: ok && terminal.Is(f), said: map[string]bool{}}
}

func (p *progress) show(format string, args ...any) {
	line := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ") // some errors have several
	line = digest.ReplaceAllString(line, "")
	if line == p.last {
		return
	}
	p.last = line
	if p.terminal {
		columns, _ := terminal.Size(p.w.(*os.File))
		fmt.Fprintf(p.w, "\r\x1b[K%s", clip(line, columns))
		return
	}
	line = attempt.ReplaceAllString(line, "") // what fails again does so after ever longer waits
	line = clip(line, longestLine)
	if once := countdown.ReplaceAllString(line, ""); !p.said[once] {
		p.said[once] = true
		fmt.Fprintln(p.w, line)
	}
}

// digest is of an image's reference what tells people nothing.
var digest = regexp.MustCompile(`@sha256:[0-9a-f]{64}`)

// countdown is what changes every second.
var countdown = regexp.MustCompile(` \(in [0-9hms]+\)`)

var attempt = regexp.MustCompile(`; next attempt in [0-9a-zµ.]+`)

// longestLine is how much of a line a file gets, in characters.
const longestLine = 300

// done clears the changing line.
func (p *progress) done() {
	if p.terminal && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.last = ""
}

// clip keeps a line within one row of the terminal, or what is written over it
// would leave its beginning.
func clip(line string, columns int) string {
	r := []rune(line)
	if len(r) < columns {
		return line
	}
	return string(r[:max(columns-2, 0)]) + "…"
}
