package container

import (
	"os"
	"path/filepath"
	"strings"
)

// procStatus reads /proc/PID/status (proc_pid_status(5)): fields by name, none where
// there is no such process. pid may be "self".
func procStatus(pid string) map[string]string {
	data, _ := os.ReadFile(filepath.Join("/proc", pid, "status"))
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			out[name] = strings.TrimSpace(value)
		}
	}
	return out
}
