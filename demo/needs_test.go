package demo

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// bare gives a folder for the PATH that has only what scripts/setup itself runs.
func bare(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"sh", "dirname", "id", "awk", "sed", "true"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestLackingTools: a demonstration names at once all that the machine lacks, and the
// command that installs it, which the checkout's script does for each demonstration.
func TestLackingTools(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bare(t))
	for _, what := range All() {
		images := t.TempDir()
		for _, name := range what.Images {
			if err := os.Mkdir(filepath.Join(images, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		err := Show(t.Context(), what, Options{Dir: filepath.Join(t.TempDir(), "d"), Images: images, Out: io.Discard})
		if err == nil || !strings.Contains(err.Error(), "which this machine lacks; install it: sudo apt-get install -y --no-install-recommends ") {
			t.Errorf("%s: %v", what.Name, err)
			continue
		}
		name := what.Name
		if name == "" {
			name = "demo"
		}
		script := exec.Command(shell, "../scripts/setup", name)
		script.Env = []string{"PATH=" + os.Getenv("PATH"), "GO=true"}
		said, _ := script.CombinedOutput() // it fails, since nothing can be installed
		_, list, _ := strings.Cut(string(said), "run this again:")
		installs := strings.Fields(list)
		for _, tool := range what.Needs {
			if _, there := os.Stat(filepath.Join("/usr/sbin", tool)); there == nil {
				continue // where the script looks, too
			}
			if _, there := os.Stat(tool); there == nil {
				continue
			}
			if !strings.Contains(err.Error(), tool) || !strings.Contains(err.Error(), packages[tool]) || packages[tool] == "" {
				t.Errorf("%s lacks %s: %v", what.Name, tool, err)
			}
			if !slices.Contains(installs, packages[tool]) {
				t.Errorf("scripts/setup %s does not install %s for %s:\n%s", name, packages[tool], tool, said)
			}
		}
	}
}
