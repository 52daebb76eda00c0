package container

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestSecrets: an instance reads its secrets, from memory; nothing on the disk has them,
// while it runs.
func TestSecrets(t *testing.T) {
	opt := machine(t)
	d := open(t, opt)
	defer d.Close()
	value := rand.Text()
	spec := hostSpec([]string{"/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"})
	r := onpath.RunSpec{ID: "secretive", Spec: spec, Secrets: map[string][]byte{"db.password": []byte(value)},
		NetNS: "/proc/self/ns/net"}
	p, err := d.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}()
	var out bytes.Buffer
	code, err := d.Exec(t.Context(), r.ID, onpath.ExecSpec{Stdout: &out, Stderr: &out,
		Command: []string{"sh", "-c", "cat /run/secrets/db.password; echo; stat -f -c %T /run/secrets; env"}})
	if err != nil || code != 0 || !strings.HasPrefix(out.String(), value+"\ntmpfs\n") || strings.Count(out.String(), value) != 1 {
		t.Fatalf("%v, exit code %d:\n%s", err, code, out.String())
	}
	found, _ := exec.CommandContext(t.Context(), "find", opt.StateDir, "-xdev", "-type", "f", "-exec", "grep", "-las", value, "{}", "+").Output()
	if len(found) > 0 {
		t.Errorf("files have it:\n%s", found)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range procs {
		if b, _ := os.ReadFile(f); bytes.Contains(b, []byte(value)) {
			t.Errorf("%s has it", f)
		}
	}
}
