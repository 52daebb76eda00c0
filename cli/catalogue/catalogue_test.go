package catalogue

import (
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/functions"
)

// TestEntriesAreWhole: each folder with a Function is an entry, for somebody, with three lines
// of which one uses it, and with objects that are valid.
func TestEntriesAreWhole(t *testing.T) {
	list, err := List()
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]bool{}
	for _, e := range list {
		entries[e.Name] = true
		if e.For == "" || e.Shows == "" || e.Page() == "" || len(e.Use) != 3 {
			t.Errorf("%s: for, shows, a page and three lines; it has %d", e.Name, len(e.Use))
		}
		if (e.Chain == nil) == (e.Service == nil) {
			t.Errorf("%s: either a chain or a service puts it to use", e.Name)
		}
		uses := false
		for _, line := range e.Use {
			_, words, ok := strings.Cut(line, "onpath catalogue use "+e.Name+" ")
			if !ok {
				continue
			}
			uses = true
			target := Target{At: []string{"fra1"}, Chained: strings.Contains(words, "--to website"),
				From: onpath.Endpoints{Any: true}, To: onpath.Endpoints{Hosts: "website"}, Set: onpath.Env{}}
			for _, s := range strings.Split(words, "--set ")[1:] {
				k, v, _ := strings.Cut(strings.Trim(strings.Fields(s)[0], `'"`), "=") // the first word, without quotes
				target.Set[k] = v
			}
			if _, err := e.Objects(e.Function, target); err != nil {
				t.Errorf("%s: %s: %v", e.Name, line, err)
			}
		}
		if !uses {
			t.Errorf("%s: no line has the words: onpath catalogue use %s", e.Name, e.Name)
		}
	}
	all, err := fs.Glob(functions.Catalogue, "*/"+functionFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if name := path.Dir(p); !entries[name] {
			t.Errorf("functions/%s has no %s", name, File)
		}
	}
}

// TestValuesAreChecked: --set knows the function's parameters.
func TestValuesAreChecked(t *testing.T) {
	for _, c := range []struct {
		name, set, want string
	}{
		{"cache", "PORT=80", "did you mean PORTS?"},
		{"cache", "MEMORY=much", "is not an integer"},
		{"cache", "MEMORY=65536", "is too much"},
		{"nat", "", "MAP is missing; write --set MAP=VALUE"},
		{"nat", "MAP=foo", "is not a list of pairs of addresses"},
		{"nat", "MAP=192.0.2.1=2001:db8::1", "is not a list of pairs of addresses"},
		{"ebpf-ratelimit", "per=host", "write total, flow or source"},
		{"active-cdn", "", "origin is missing; write --set origin=VALUE"},
		{"active-cdn", "origin=", "is not a URL of HTTP; write http://"},
		{"active-cdn", "origin=ftp://x", "is not a URL of HTTP"},
		{"active-cdn", "origin=https://x", "is not a URL of HTTP"},
		{"active-cdn", "origin=http://", "is not a URL of HTTP"},
		{"active-cdn", "origin=http://x:99999", "is not a URL of HTTP"},
		{"active-cdn", "origin=http://a b", "is not a URL of HTTP"},
		{"active-cdn", "origin=http://a@b", "is not a URL of HTTP"},
		{"active-cdn", "keep=-1", "write 0 to 86400"},
		{"active-cdn", "keep=999999999", "write 0 to 86400"},
	} {
		e, err := Find(c.name)
		if err != nil {
			t.Fatal(err)
		}
		set := onpath.Env{}
		if k, v, ok := strings.Cut(c.set, "="); ok {
			set[k] = v
		}
		if _, err = e.Objects(e.Function, Target{Set: set}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s --set %s: %v", c.name, c.set, err)
		}
	}
	if _, err := Find("cashe"); err == nil || !strings.Contains(err.Error(), "did you mean cache?") {
		t.Error(err)
	}
}

// TestExtracted: what an image is built from lies in the program.
func TestExtracted(t *testing.T) {
	dir := t.TempDir()
	if err := Extract(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"base/image.yaml", "cache/image.yaml", "cache/entrypoint.sh", "ids/notify.py",
		"netmonitor/netmonitor.wasm"} {
		if _, err := os.Stat(path.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}
