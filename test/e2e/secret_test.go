package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

const secretYAML = `apiVersion: onpath/v1alpha1
kind: Secret
metadata: {name: db}
spec: {data: {password: %s}}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: keeper}
spec:
  container:
    image: host
    command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"]
    secrets: {db.password: db/password}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: keeper}
spec:
  function: keeper
  drain: 1s
  place: {cloudlets: [pop]}
`

// TestSecret: an instance reads a secret, and the next one its new value; nothing else has
// either, wherever one looks: listings, histories, differences, logs, process lists, the
// files of server and nodes, a backup.
func TestSecret(t *testing.T) {
	ctx := need(t, 2*time.Minute)
	first, second := rand.Text(), rand.Text()
	file := filepath.Join(t.TempDir(), "changed.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, secretYAML, second), 0o600); err != nil {
		t.Fatal(err)
	}
	apply(ctx, t, fmt.Sprintf(secretYAML, first))
	reads(ctx, t, first)
	differs, _ := testbed.Onpath(ctx, "diff", "-f", file) // its exit code says that it differs
	hides(t, "onpath diff", string(differs), first, second)
	if !strings.Contains(string(differs), "sealed") {
		t.Errorf("the change is not seen:\n%s", differs)
	}
	if err := testbed.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
	reads(ctx, t, second)
	if again, _ := testbed.Onpath(ctx, "apply", "--dry-run", "-f", file, "-o", "json"); strings.Contains(string(again), "sealed") {
		t.Errorf("applied again it is another:\n%s", again)
	}

	for _, args := range []string{"get secrets", "get secrets -o wide", "get secrets -o yaml", "get all -o yaml", "get instances -o yaml",
		"describe secret db", "describe function keeper", "history secret db", "history secret db -o yaml", "events", "audit -o json",
		"apply --dry-run -f " + file + " -o json", "get nodes -o yaml", "logs keeper"} {
		out, _ := testbed.Onpath(ctx, strings.Fields(args)...)
		hides(t, "onpath "+args, string(out), first, second)
	}
	for _, name := range []string{"server", "gw1", "n1", "n2", "n3"} {
		hides(t, "log of "+name, testbed.Log(name), first, second)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range procs {
		b, _ := os.ReadFile(f) // it may be gone
		hides(t, f, string(b), first, second)
	}
	backup := filepath.Join(t.TempDir(), "backup.tar")
	if _, err := testbed.Onpath(ctx, "backup", backup); err != nil {
		t.Fatal(err)
	}
	grep := fmt.Sprintf("tar -xaOf %s | grep -cae %s -e %s", backup, first, second)
	if out, _ := testbed.Exec(ctx, "client", "sh", "-c", grep); strings.TrimSpace(string(out)) != "0" {
		t.Errorf("the backup has it: %s", out)
	}
	for _, host := range []string{"server", "gw1", "n1", "n2", "n3"} {
		out, _ := testbed.Exec(ctx, host, "sh", "-c", fmt.Sprintf(
			"find /var/lib/onpath /run/onpath -xdev -type f -exec grep -lase %s -e %s {} +; test -d /var/lib/onpath && echo looked", first, second))
		if strings.TrimSpace(string(out)) != "looked" {
			t.Errorf("files of %s have it:\n%s", host, out)
		}
	}
}

// reads waits until the instance has a value.
func reads(ctx context.Context, t *testing.T, value string) {
	t.Helper()
	err := testbed.WaitFor(ctx, "the instance reads its secret", 60*time.Second, func() (bool, error) {
		list, err := testbed.Instances(ctx)
		for _, i := range list {
			if i.Spec.Deployment == "keeper" && i.Status.State == onpath.InstanceReady && i.Spec.Draining.IsZero() {
				out, _ := testbed.Onpath(ctx, "exec", i.Metadata.Name, "--", "cat", onpath.SecretsFolder+"/db.password")
				return string(out) == value, nil
			}
		}
		return false, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// hides fails if a text has one of the values.
func hides(t *testing.T, what, text string, values ...string) {
	t.Helper()
	for _, v := range values {
		if strings.Contains(text, v) {
			t.Errorf("%s has the value:\n%s", what, tail(text, 20))
		}
	}
}
