package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBackup: a backup that is made while others apply, restored in another folder, has
// every object with its UID and history; what is written next is newer than all before.
// A broken one, and a folder that is not empty, are refused and change nothing.
func TestBackup(t *testing.T) {
	dir := t.TempDir()
	stop := startServer(t, filepath.Join(dir, "server"))
	shopFile, busy := filepath.Join(dir, "shop.yaml"), filepath.Join(dir, "busy.yaml")
	if err := os.WriteFile(shopFile, []byte(shop), 0o600); err != nil {
		t.Fatal(err)
	}
	must := func(want string, args ...string) string {
		t.Helper()
		got, code := onpathRun(args...)
		if code != exitOK || !strings.Contains(got, want) {
			t.Fatalf("onpath %v: code %d, without %q:\n%s", args, code, want, got)
		}
		return got
	}
	must("created", "apply", "-f", shopFile)
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-end:
				return
			default:
			}
			text := fmt.Sprintf("apiVersion: onpath/v1alpha1\nkind: Hosts\nmetadata: {name: h%d}\nspec: {addresses: [10.1.%d.%d]}\n", n%50, n/250%250, n%250)
			if err := os.WriteFile(busy, []byte(text), 0o600); err != nil {
				t.Error(err)
			}
			if got, code := onpathRun("apply", "-f", busy); code != exitOK {
				t.Error(got)
			}
		}
	}()
	file := filepath.Join(dir, "backup.tar")
	must("bytes", "backup", file)
	close(end)
	<-ended
	uid := func() string {
		got := must("", "get", "chain", "web", "-o", "json")
		_, rest, _ := strings.Cut(got, `"uid": "`)
		id, _, _ := strings.Cut(rest, `"`)
		return id
	}
	before := uid()
	version := func() (v int64) {
		got := must("", "get", "deployment", "walls", "-o", "json")
		_, rest, _ := strings.Cut(got, `"version": `)
		fmt.Sscanf(rest, "%d", &v)
		return v
	}
	must("created", "apply", "-f", writeFile(t, dir, strings.ReplaceAll(shop, "walls", "later")))
	last := version()
	stop()

	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(dir, "half.tar")
	if err := os.WriteFile(half, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(dir, "restored")
	if got, code := onpathRun("restore", half, "--state-dir", restored); code != exitBadInput || !strings.Contains(got, "not the whole of one") {
		t.Errorf("half a backup: code %d\n%s", code, got)
	}
	spoilt := bytes.Clone(whole)
	spoilt[len(spoilt)/2] ^= 0xff
	if err := os.WriteFile(half, spoilt, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, code := onpathRun("restore", half, "--state-dir", restored); code == exitOK {
		t.Errorf("a spoilt backup is taken: %s", got)
	}
	if got, code := onpathRun("restore", file, "--state-dir", filepath.Join(dir, "server")); code != exitConflict || !strings.Contains(got, "is not empty") {
		t.Errorf("into a folder in use: code %d\n%s", code, got)
	}
	if left, _ := filepath.Glob(restored + "*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	must("onpath server --state-dir "+restored+"\n", "restore", file, "--state-dir", restored)
	startServer(t, restored)
	if got := uid(); got != before {
		t.Errorf("chain web has UID %s, had %s", got, before)
	}
	must("1 *", "history", "chain", "web")
	if got, code := onpathRun("get", "deployment", "later"); code != exitNotFound {
		t.Errorf("what was applied after the backup is there: %s", got)
	}
	must("changed", "apply", "-f", writeFile(t, dir, strings.Replace(shop, "instances: 2", "instances: 4", 1)))
	if got := version(); got <= last {
		t.Errorf("version %d follows version %d of before", got, last)
	}
}

// TestRestoreKeepsFile: a file where the folder is to be is refused and kept.
func TestRestoreKeepsFile(t *testing.T) {
	file := writeFile(t, t.TempDir(), "mine")
	if got, code := onpathRun("restore", file, "--state-dir", file); code != exitBadInput || !strings.Contains(got, file+" is a file; name an empty or absent folder") {
		t.Errorf("code %d: %s", code, got)
	}
	if left, err := os.ReadFile(file); err != nil || string(left) != "mine" {
		t.Errorf("the file has %q: %v", left, err)
	}
}

func writeFile(t *testing.T, dir, text string) string {
	t.Helper()
	file := filepath.Join(dir, "file.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
