package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const rotatedSecret = `apiVersion: onpath/v1alpha1
kind: Secret
metadata: {name: db}
spec: {data: {password: hunter2}}
`

// TestRotateSecret: Secrets are sealed by the new secret as a rotation begins. At its end nothing
// of the one before is left, in the store or in the server's folder, and what it sealed is refused.
func TestRotateSecret(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "server")
	stop := startServer(t, folder)
	must := func(want string, args ...string) string {
		t.Helper()
		got, code := onpathRun(args...)
		if code != exitOK || !strings.Contains(got, want) {
			t.Fatalf("onpath %v: code %d, without %q:\n%s", args, code, want, got)
		}
		return got
	}
	sealed := func() string {
		_, rest, _ := strings.Cut(must("v1:", "get", "secret", "db", "-o", "json"), `"v1:`)
		text, _, _ := strings.Cut(rest, `"`)
		return "v1:" + text
	}
	file := writeFile(t, dir, rotatedSecret)
	must("created", "apply", "-f", file)
	first := sealed()
	old, err := os.ReadFile(filepath.Join(folder, "secret"))
	if err != nil {
		t.Fatal(err)
	}
	must("secret:    one", "rotate")
	must("until onpath rotate secret --end", "rotate", "secret")
	second := sealed()
	if second == first {
		t.Error("the Secret is sealed by the secret before")
	}
	stop()
	stop = startServer(t, folder)
	must("unchanged", "apply", "-f", file)
	with := func(text string) string {
		return writeFile(t, t.TempDir(), strings.Replace(rotatedSecret, "data: {password: hunter2}", "sealed: {password: '"+text+"'}", 1))
	}
	must("", "apply", "-f", with(first)) // a copy of before is good until the end
	must("secret:    one", "rotate", "secret", "--end")
	if now := sealed(); now == first {
		t.Error("a Secret that the secret before has sealed is left")
	}
	if kept, err := os.ReadFile(filepath.Join(folder, "secret")); err != nil || strings.Contains(string(kept), string(old)) {
		t.Errorf("the secret before is kept: %v", err)
	}
	if got, code := onpathRun("apply", "-f", with(first)); code == exitOK || !strings.Contains(got, "another server's key") {
		t.Errorf("what the secret before has sealed: code %d\n%s", code, got)
	}
	stop()
	startServer(t, folder)
	must("unchanged", "apply", "-f", file)
	if got, code := onpathRun("rotate", "secret", "--end"); code != exitConflict {
		t.Errorf("the end of no rotation: code %d\n%s", code, got)
	}
}
