package roster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath/cli/roster"
)

func TestRoster(t *testing.T) {
	above := filepath.Join(t.TempDir(), "onpath")
	dir := filepath.Join(above, "agents")
	here, err := roster.Here()
	if err != nil {
		t.Fatal(err)
	}
	other := roster.NetNS{Dev: here.Dev, Ino: here.Ino + 1}
	names := func(ns roster.NetNS) string {
		t.Helper()
		list, err := roster.In(dir, ns)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range list {
			out = append(out, e.Name+" "+e.StateDir)
		}
		return strings.Join(out, ", ")
	}
	if got := names(here); got != "" {
		t.Errorf("before there is a list: %s", got)
	}
	for _, e := range []roster.Entry{{"b", "/b", "", here}, {"a", "/a", "/c.sock", here}, {"c", "/c", "", other}, {"b2", "/b", "", here}} {
		if err := roster.Enter(dir, e); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := names(here), "a /a, b2 /b"; got != want {
		t.Errorf("here are %s, want %s", got, want)
	}
	if got := names(other); got != "c /c" {
		t.Errorf("elsewhere are %s", got)
	}
	for _, d := range []string{"/a", "/b", "/never"} {
		if err := roster.Leave(dir, d); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(here); got != "" {
		t.Errorf("after they left: %s", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "x.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := roster.In(dir, here); err == nil || !strings.Contains(err.Error(), "x.json") {
		t.Errorf("a broken entry: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "x.json")); err != nil {
		t.Fatal(err)
	}
	if err := roster.Leave(dir, "/c"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(above); err == nil {
		t.Error("the empty list's folders are left")
	}
}
