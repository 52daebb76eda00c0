package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const vainYAML = `apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: NAME}
spec: {container: {image: host, command: [sh, -c, "echo 'line 3: syntax error' >&2; exit 3"], attach: routed}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: NAME}
spec:
  priority: 7
  from: {hosts: client}
  to: {hosts: origin}
  select: [{protocol: tcp, destinationPorts: ["PORT"]}]
  through: [{function: NAME, drain: 1s, place: {nodes: PLACE}}]
`

// TestWaitInVain: a wait for what nobody but a person can change ends soon, and says what
// to do; one for a program that ends again and again says what it printed.
func TestWaitInVain(t *testing.T) {
	ctx := need(t, 3*time.Minute)
	var all sync.WaitGroup
	for _, c := range []struct{ name, port, place, timeout, want string }{
		{"nowhere", "7101", "{zone: nowhere}", "150s", "has not the label zone: nowhere"},
		{"ends", "7102", "{}", "8s", "line 3: syntax error"},
	} {
		text := strings.NewReplacer("NAME", c.name, "PORT", c.port, "PLACE", c.place).Replace(vainYAML)
		file := filepath.Join(t.TempDir(), "vain.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = testbed.Onpath(context.Background(), "delete", "-f", file) })
		all.Go(func() {
			began := time.Now()
			_, err := testbed.Onpath(ctx, "apply", "-f", file, "--wait", "--timeout", c.timeout)
			took := time.Since(began)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 10 || !strings.Contains(err.Error(), c.want) || took > 2*time.Minute {
				t.Errorf("%s: after %s: %v; want exit code 10, and the words %q", c.name, took, err, c.want)
			}
		})
	}
	all.Wait()
}
