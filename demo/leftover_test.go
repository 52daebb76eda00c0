package demo

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestDownLeavesOthersFolders: without a record a folder goes only if nothing is
// in it that a demonstration did not write.
func TestDownLeavesOthersFolders(t *testing.T) {
	for _, c := range []struct {
		name  string
		files []string
		said  string
		code  onpath.Code
		there bool
	}{
		{"absent", nil, "nothing of a demonstration is in ", "", false},
		{"begun", []string{"examples/quickstart/chain.yaml", "bin/images"}, "", "", false},
		{"somebody's", []string{"examples/a.yaml", "thesis.tex"}, "", onpath.CodeInvalid, true},
	} {
		dir := filepath.Join(t.TempDir(), "d")
		for _, f := range c.files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		err := Down(t.Context(), dir, &out)
		if onpath.CodeOf(err) != c.code || c.code != "" && !strings.Contains(err.Error(), "it has thesis.tex") {
			t.Errorf("%s: %v", c.name, err)
		}
		if !strings.HasPrefix(out.String(), c.said) || c.said == "" && out.Len() > 0 {
			t.Errorf("%s: it said %q", c.name, out.String())
		}
		if _, err := os.Stat(dir); (err == nil) != c.there {
			t.Errorf("%s: the folder is there: %v", c.name, err == nil)
		}
	}
}

// TestOneDemonstration: while one is at work, another with its folder is refused,
// and --down as well; nothing of it goes.
func TestOneDemonstration(t *testing.T) {
	dir, images := filepath.Join(t.TempDir(), "d"), t.TempDir()
	for _, name := range []string{"firewall", "ids", "shaper", "cache"} {
		if err := os.Mkdir(filepath.Join(images, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	release, err := alone(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	record := filepath.Join(dir, recordFile)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(record, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"a second run": Show(t.Context(), All()[0], Options{Dir: dir, Images: images, Out: io.Discard}),
		"one anew":     Show(t.Context(), All()[0], Options{Dir: dir, Images: images, Out: io.Discard, Anew: true}),
		"--down":       Down(t.Context(), dir, io.Discard),
	} {
		if onpath.CodeOf(err) != onpath.CodeConflict || !strings.Contains(err.Error(), "is at work in "+dir) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := os.Stat(record); err != nil {
		t.Error(err)
	}
}

// TestRelativeFolder: a folder that is named from here is one of the whole machine's.
func TestRelativeFolder(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	release, err := alone("d")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	err = Show(t.Context(), Demonstration{}, Options{Dir: "d", Out: io.Discard})
	if want := "is at work in " + filepath.Join(here, "d"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}
