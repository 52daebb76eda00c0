package web

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestDist: the committed files are what the pages' sources are built to.
func TestDist(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it fetches packages and builds the pages")
	}
	for _, p := range []string{"node", "npm"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(p + " is not installed: it takes Node 20 or later to build the pages")
		}
	}
	dir := t.TempDir()
	sources, _ := filepath.Glob("*")
	for _, name := range sources {
		if name == "node_modules" || name == "dist" {
			continue
		}
		if out, err := exec.Command("cp", "-r", name, dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, args := range [][]string{{"npm", "ci", "--no-audit", "--no-fund"}, {"npm", "run", "build"}} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	built := contents(t, os.DirFS(filepath.Join(dir, "dist")))
	committed := contents(t, Pages())
	for name, data := range built {
		if !bytes.Equal(data, committed[name]) {
			t.Errorf("%s is built otherwise than it is committed (%d and %d bytes): cd web && npm ci && npm run build", name, len(data), len(committed[name]))
		}
	}
	for name := range committed {
		if built[name] == nil {
			t.Errorf("%s is committed, and not built any more", name)
		}
	}
}

func contents(t *testing.T, files fs.FS) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := fs.WalkDir(files, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		all[name], err = fs.ReadFile(files, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
