package inline

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/onpath/onpath/internal/boundlog"
)

// The files in an instance's folder. The log is two, as boundlog names them.
const (
	recordFile = "record.json"
	objectFile = "function.o"
	logFile    = boundlog.Now
)

// Sizes of a log, in bytes: of each of its two files, and of a line.
const (
	maxLog  = 1 << 20
	maxLine = 4 << 10
)

// say writes a line for onpath logs.
func (p *process) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	line := fmt.Appendf(nil, "%s %s\n", time.Now().UTC().Format(time.RFC3339), text[:min(len(text), maxLine)])
	p.logging.Lock()
	defer p.logging.Unlock()
	path := filepath.Join(p.d.dir(p.id), logFile)
	switch info, err := os.Stat(path); {
	case err != nil:
	case info.Size() > 2*maxLog: // a former version's, which did not bound it
		_ = os.Remove(path)
	case info.Size()+int64(len(line)) > maxLog:
		_ = os.Rename(path, filepath.Join(filepath.Dir(path), boundlog.Former))
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.Write(line)
}
