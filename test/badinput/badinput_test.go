// Package badinput_test applies wrong files. Each must give one clear error
// with file and line, exit code 2, and change nothing.
//
// testdata holds files that are wrong by themselves, references those that only a
// server can judge. Beside each NAME.yaml stands NAME.want: what must follow the
// file's name in the error, or stand in it somewhere.
package badinput_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/manifest"
)

type badFile struct{ name, path, want string }

// filesIn are the files of a folder.
func filesIn(t *testing.T, dir string) (list []badFile) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if ext == ".want" {
			continue
		}
		name := strings.TrimSuffix(e.Name(), ext)
		want, err := os.ReadFile(filepath.Join(dir, name+".want"))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, badFile{name, filepath.Join(dir, e.Name()), strings.TrimSpace(string(want))})
	}
	return list
}

// badFiles are those of testdata, and those too large to keep there.
func badFiles(t *testing.T) []badFile {
	t.Helper()
	list := filesIn(t, "testdata")
	dir := t.TempDir()
	for _, big := range []struct{ name, text, want string }{
		{"ten-megabytes", "apiVersion: onpath/v1alpha1\nkind: Tenant\nmetadata:\n  name: a\n  labels:\n" + strings.Repeat("    k: vvvvvvvvvvvvvvvvvvvvvvvvvvvvv\n", 300_000), "1:1: the file is larger than 4 MiB"},
		{"alias-bomb", "apiVersion: onpath/v1alpha1\nkind: Chain\nmetadata: {name: a}\nspec:\n  through:\n  - &a {function: f, select: [" + strings.Repeat("{}, ", 50) + "]}\n" + strings.Repeat("  - *a\n", 12_000), "values, aliases expanded"},
		{"deep", "apiVersion: onpath/v1alpha1\nkind: Tenant\nmetadata: {name: a}\nspec: {display: " + strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000) + "}\n", "where text is wanted"},
	} {
		p := filepath.Join(dir, big.name+".yaml")
		if err := os.WriteFile(p, []byte(big.text), 0o644); err != nil {
			t.Fatal(err)
		}
		list = append(list, badFile{big.name, p, big.want})
	}
	if len(list) < 40 {
		t.Fatalf("only %d bad files", len(list))
	}
	return list
}

var place = regexp.MustCompile(`:\d+:\d+:( |$)`)

// check says what is wrong with an error message about f.
func (f badFile) check(message string) string {
	switch {
	case strings.Contains(message, "\n"):
		return "more than one line"
	case !strings.Contains(message, f.path+":"):
		return "does not name the file"
	case !place.MatchString(message):
		return "does not name line and column"
	case place.MatchString(":" + f.want):
		if want := f.path + ":" + f.want; !strings.Contains(message, want) {
			return "does not contain " + want
		}
	case !strings.Contains(message, f.want):
		return "does not contain " + f.want
	}
	return ""
}

func TestFiles(t *testing.T) {
	for _, f := range badFiles(t) {
		t.Run(f.name, func(t *testing.T) {
			docs, err := manifest.Load([]string{f.path}, nil)
			if err == nil {
				t.Fatal("no error")
			}
			if docs != nil {
				t.Error("gave documents beside the error")
			}
			if code := onpath.CodeOf(err); code != onpath.CodeInvalid {
				t.Errorf("code %s", code)
			}
			if why := f.check(err.Error()); why != "" {
				t.Errorf("%s: %s", why, err)
			}
			t.Log(err)
		})
	}
}
