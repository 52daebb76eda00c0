package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestClash: what clashes with an object that is there is named with file and line of
// what was written.
func TestClash(t *testing.T) {
	file := withServer(t)
	again := strings.Replace(shop[strings.LastIndex(shop, "---"):], "name: web", "name: web2", 1)
	own := filepath.Join(filepath.Dir(file), "own.yaml")
	text := strings.Replace(shop, "underlay: {address: 192.0.2.1}}", "underlay: {address: 192.0.2.1}, uplinks: [{name: a, device: a, attach: router}]}", 1)
	if err := os.WriteFile(own, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, code := onpathRun("apply", "-f", own); code != exitOK {
		t.Fatal(got)
	}
	if err := os.WriteFile(own, []byte(again), 0o600); err != nil {
		t.Fatal(err)
	}
	got, code := onpathRun("apply", "-f", own)
	if want := own + ":"; code != exitBadInput || !strings.Contains(got, want) || !strings.Contains(got, "chain default/web") {
		t.Errorf("code %d, must name %s and the chain that is there:\n%s", code, want, got)
	}
}
