package badinput_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/store/mem"
)

// TestUnconfirmed: who lost the line that apply printed finds out what waits,
// until when, and how to keep it or take it back.
func TestUnconfirmed(t *testing.T) {
	bin := testprogram.Path(t)
	store := mem.New(mem.Options{})
	furnish(t, store)
	server := "unix://" + serve(t, store)
	onpath := func(args ...string) (int, string, string) {
		t.Helper()
		return run(t, bin, append(args, "--server", server)...)
	}
	if code, out, message := onpath("confirm"); code != 0 || out != "" || message != "nothing waits for a confirmation" {
		t.Errorf("exit code %d, %q, %q", code, out, message)
	}
	p := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(p, []byte("apiVersion: onpath/v1alpha1\nkind: Hosts\nmetadata: {name: web}\nspec: {addresses: [192.0.2.1]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, keep := range []bool{false, true} {
		if code, _, message := onpath("apply", "-f", p, "--confirm", "1h"); code != 0 {
			t.Fatal(message)
		}
		code, out, message := onpath("confirm")
		m := regexp.MustCompile(`(?m)^([a-z0-9]{8})  .*:\d\d  +\d+m  operator/\S+  hosts default/web created$`).FindStringSubmatch(out)
		if code != 0 || m == nil || !strings.Contains(out, "onpath confirm ID --undo") {
			t.Fatalf("exit code %d, %s: %s", code, message, out)
		}
		if _, out, _ := onpath("describe", "hosts", "web"); !strings.Contains(out, "unconfirmed: it is deleted again at ") || !strings.Contains(out, "onpath confirm "+m[1]+"\n") {
			t.Errorf("described as\n%s", out)
		}
		if code, _, message := onpath("apply", "-f", p); code != 0 || !strings.Contains(message, "is undone at ") || !strings.Contains(message, "onpath confirm "+m[1]) {
			t.Errorf("applied again: exit code %d, %s", code, message)
		}
		args, want := []string{"confirm", m[1], "--undo"}, m[1]+" is undone\n"
		if keep {
			args, want = args[:2], m[1]+" is kept\n"
		}
		if code, out, message := onpath(args...); code != 0 || out != want {
			t.Errorf("%v: exit code %d, %q, %s", args, code, out, message)
		}
		if code, _, message := onpath(args...); code != 3 || !strings.Contains(message, "onpath confirm lists what waits") {
			t.Errorf("again: exit code %d, %s", code, message)
		}
		if there := strings.Contains(contents(t, store), "hosts default/web"); there != keep {
			t.Errorf("kept %v, and it is there %v", keep, there)
		}
	}
	// What was deleted meanwhile is not there again, and that is said.
	code, out, message := onpath("apply", "-f", p, "--confirm", "1h", "-o", "json")
	if code != 0 {
		t.Fatal(message)
	}
	if err := os.WriteFile(p, []byte("apiVersion: onpath/v1alpha1\nkind: Hosts\nmetadata: {name: web}\nspec: {addresses: [192.0.2.2]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, message = onpath("apply", "-f", p, "--confirm", "1h"); code != 0 {
		t.Fatal(message)
	}
	if code, _, message = onpath("delete", "hosts", "web"); code != 0 {
		t.Fatal(message)
	}
	_, out, _ = onpath("confirm", "-o", "json")
	id := regexp.MustCompile(`"id": *"([a-z0-9]{8})"`).FindStringSubmatch(out)
	if id == nil {
		t.Fatalf("nothing waits: %s", out)
	}
	if code, out, message = onpath("confirm", id[1], "--undo"); code != 0 || out != "nothing of "+id[1]+" is undone; it waits no more\nhosts default/web was deleted since, and stays deleted\n" {
		t.Errorf("exit code %d, %q, %s", code, out, message)
	}
	for _, args := range [][]string{{"confirm", "--undo"}, {"confirm", ""}} {
		if code, _, message := onpath(args...); code != 2 || !strings.Contains(message, "onpath confirm lists what waits") {
			t.Errorf("%q: exit code %d, %s", args, code, message)
		}
	}
}
