package badinput_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/control"
	firewall "github.com/onpath/onpath/functions/ebpf-firewall"
	loadbalancer "github.com/onpath/onpath/functions/ebpf-loadbalancer"
	monitor "github.com/onpath/onpath/functions/ebpf-monitor"
	ratelimit "github.com/onpath/onpath/functions/ebpf-ratelimit"
	"github.com/onpath/onpath/internal/testprogram"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/runtime/inline"
	"github.com/onpath/onpath/sdk"
	"github.com/onpath/onpath/store/mem"
)

// TestCommandLine applies every bad file by the program, to a server that works:
// each time exit code 2, one clear line, and nothing changed.
func TestCommandLine(t *testing.T) {
	bin := testprogram.Path(t)
	store := mem.New(mem.Options{})
	furnish(t, store)
	socket := serve(t, store)
	before := contents(t, store)
	files := append(filesIn(t, "references"), badFiles(t)...)
	for i, f := range files {
		ways := []string{"", "--dry-run"}
		if i%4 != 0 && os.Getenv("ONPATH_SOAK") == "" {
			ways = ways[:1] // each start of the program takes its time, and both read alike
		}
		t.Run(f.name, func(t *testing.T) {
			for _, extra := range ways {
				args := []string{"apply", "-f", f.path, "--server", "unix://" + socket}
				if extra != "" {
					args = append(args, extra)
				}
				code, out, message := run(t, bin, args...)
				if code != 2 {
					t.Errorf("%s exit code %d: %s", extra, code, message)
				}
				if out != "" {
					t.Errorf("%s wrote to standard output: %s", extra, out)
				}
				if why := f.check(strings.TrimPrefix(message, "onpath: ")); why != "" {
					t.Errorf("%s %s: %s", extra, why, message)
				}
			}
			if after := contents(t, store); after != before {
				t.Errorf("the store changed:\n%s\nwas:\n%s", after, before)
			}
		})
	}
}

// TestSeveralErrors checks that a file with two mistakes gets two lines, in the
// order of the file.
func TestSeveralErrors(t *testing.T) {
	bin := testprogram.Path(t)
	p := filepath.Join(t.TempDir(), "two.yaml")
	text := "apiVersion: onpath/v1alpha1\nkind: Chain\nmetadata: {name: web}\nspec:\n  from: any\n  to: any\n  exit: nowhere\n  through: [{function: f, mode: outline}]\n"
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, message := run(t, bin, "apply", "-f", p, "--server", "unix:///nowhere")
	lines := strings.Split(message, "\n")
	if code != 2 || len(lines) != 2 || !strings.Contains(lines[0], "two.yaml:7:9:") || !strings.Contains(lines[1], "two.yaml:8:33:") {
		t.Errorf("exit code %d:\n%s", code, message)
	}
}

func run(t *testing.T, bin string, args ...string) (code int, out, message string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(os.Environ(), "ONPATH_HOME="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return code, stdout.String(), strings.TrimSpace(stderr.String())
}

// serve runs a server over the store and returns its socket.
func serve(t *testing.T, store onpath.Store) string {
	t.Helper()
	socket := serveWith(t, store, func(ctx context.Context, c *control.Controller) error { return c.Run(ctx) })
	for { // until the controller has made the tenants that are always there
		if list, _, err := store.List(t.Context(), onpath.KindTenant, ""); err != nil {
			t.Fatal(err)
		} else if len(list) == 3 {
			return socket
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// serveStill is a server that leaves the store as it is.
func serveStill(t *testing.T, store onpath.Store) string {
	t.Helper()
	return serveWith(t, store, func(ctx context.Context, _ *control.Controller) error { <-ctx.Done(); return nil })
}

func serveWith(t *testing.T, store onpath.Store, work func(context.Context, *control.Controller) error) string {
	t.Helper()
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	hub := session.NewHub(log, time.Now)
	controller := control.New(control.Options{Store: store, Hub: hub, Settings: plan.Settings{Secret: []byte("secret")}})
	server, err := api.New(api.Options{Store: store, Controller: controller, Hub: hub, Dir: dir, Version: "test",
		Functions: map[onpath.FunctionKind]onpath.FunctionChecker{onpath.EBPFFunction: inline.Checker{Functions: []sdk.Function{
			firewall.Function, loadbalancer.Function, monitor.Function, ratelimit.Function,
		}}}})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := api.ListenUnix(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- work(ctx, controller) }()
	go func() { done <- server.ServeUnix(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		hub.Close()
		store.Close()
	})
	return socket
}

// furnish puts a gateway and a second tenant into the store.
func furnish(t *testing.T, store onpath.Store) {
	t.Helper()
	docs, err := manifest.Load([]string{"installation.yaml"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var changes []onpath.Change
	for _, o := range manifest.Objects(docs) {
		changes = append(changes, onpath.Change{Key: onpath.KeyOf(o), Object: o})
	}
	if _, err := store.Write(t.Context(), onpath.Batch{Changes: changes}); err != nil {
		t.Fatal(err)
	}
}

// contents is everything that people wrote in the store, as text: onpath itself
// writes statuses and events.
func contents(t *testing.T, store onpath.Store) string {
	t.Helper()
	var b strings.Builder
	for _, k := range onpath.Kinds() {
		if k.ReadOnly() {
			continue
		}
		list, _, err := store.List(t.Context(), k, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list {
			m := o.Meta()
			text, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			var fields struct{ Spec json.RawMessage }
			if err := json.Unmarshal(text, &fields); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s uid %s generation %d %s\n", onpath.KeyOf(o), m.UID, m.Generation, fields.Spec)
		}
	}
	return b.String()
}

// TestWrongFlags: flags that cannot be meant are refused before anything is
// done, with what is wrong.
func TestWrongFlags(t *testing.T) {
	bin := testprogram.Path(t)
	p := filepath.Join(t.TempDir(), "good.yaml")
	if err := os.WriteFile(p, []byte("apiVersion: onpath/v1alpha1\nkind: Hosts\nmetadata: {name: web}\nspec: {addresses: [192.0.2.1]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"apply", "-f", p, "--confirm", "0s"}, "from 1s to 24h"},
		{[]string{"apply", "-f", p, "--confirm=-5s"}, "from 1s to 24h"},
		{[]string{"apply", "-f", p, "--confirm", "2000000h"}, "from 1s to 24h"},
		{[]string{"apply", "-f", p, "--confirm", "soon"}, "confirm"},
		{[]string{"apply", "-f", p, "--confirm", "5s", "--dry-run"}, "nothing to confirm"},
		{[]string{"apply", "-f", p, "--wait", "--timeout", "-1s"}, "--timeout -1s: write how long --wait waits"},
		{[]string{"apply", "-f", p, "--wait", "--timeout", "0s"}, "--timeout 0s: write how long --wait waits"},
		{[]string{"get", "nodes", "--wtch"}, "onpath get has no flag --wtch; did you mean --watch?"},
		{[]string{"get", "nodes", "-Z"}, "onpath get has no flag -Z; see onpath get --help"},
		{[]string{"get", "nodes", "-o", "wdie"}, "did you mean wide?"},
		{[]string{"apply", "-o", "wide", "-f", p}, "-o wide is not one of table, json, yaml"},
		{[]string{"logs", "x", "--tail", "five"}, "--tail five: that is not a whole number"},
		{[]string{"logs", "x", "--since", "0s"}, "how long ago is a time above 0"},
		{[]string{"drain", "x", "--wait", "-5s"}, "--wait -5s: write a time"},
		{[]string{"logs", "x", "--tail", "-5"}, "0 or more"},
		{[]string{"describe", "chain"}, "which chain? name one, or choose by -l"},
		{[]string{"watch"}, "onpath watch needs 1 argument or more, and got 0"},
		{[]string{"verify", "-o", "name"}, "-o name is not one of"},
		{[]string{"trace", "10.0.0.1", "10.0.0.2"}, "onpath trace needs --protocol; usage:"},
		{[]string{"trace", "10.0.0.1", "10.0.0.2", "-p", "tpc/80"}, "tpc"},
		{[]string{"doctor", "now"}, `takes no argument such as "now"`},
		{[]string{"bench", "report", "/nope.json"}, "/nope.json: there is no such file"},
		{[]string{"function", "check", "/nope.o"}, "/nope.o: there is no such file"},
		{[]string{"apply", "-f", "/nope.yaml"}, "/nope.yaml: there is no such file"},
		{[]string{"lab", "up", "/nope.yaml"}, "/nope.yaml: "},
		{[]string{"server", "--config", "/nope.yaml"}, "/nope.yaml: there is no such file"},
		{[]string{"get", "nods"}, "did you mean nodes?"},
		{[]string{"delete", "chain"}, "usage: onpath delete"},
		{[]string{"aply"}, "did you mean apply?"},
		{[]string{"aply", "-f", p}, `onpath has no command "aply"; did you mean apply?`},
		{[]string{"lab", "upp", "--nme", "x"}, `onpath lab has no command "upp"; did you mean up?`},
		{[]string{"capture", "x", "--node", "gw1", "-w", "f"}, "an instance and --node exclude each other: leave out --node gw1"},
		{[]string{"join", "abc"}, "not a join token"},
		{[]string{"node", "of"}, "did you mean off?"},
		{[]string{"node", "off", "--all", "--name", "x"}, "leave out --name"},
		{[]string{"node", "--name", "Foo Bar"}, "--name: "},
		{[]string{"help", "aply"}, "did you mean apply?"},
		{[]string{"help", "lab", "upp"}, "did you mean up?"},
		{[]string{"help", "nix"}, `onpath has no command "nix"; see onpath --help`},
		{[]string{"lab", "up", "/"}, "/: cannot read the topology: is a directory; name a file"},
		{[]string{"capture", "x", "-w", "f", "-c", "-1"}, "--count -1: "},
		{[]string{"capture", "x", "-w", "f", "-s", "-1"}, "--length -1: "},
		{[]string{"capture", "x", "-w", "f", "-p", "foo"}, `"foo" is not a protocol`},
		{[]string{"capture", "x", "-w", "f", "-p", "tcp/80"}, "--dst and --src are missing"},
		{[]string{"server", "--state-dir", p, "--socket", p + ".socket"}, "server.stateDir: " + p + " is a file"},
		{[]string{"server", "--state-dir", p + "/x", "--socket", p + ".socket"}, "remove the file"},
		{[]string{"node", "--state-dir", p}, "node.stateDir: " + p + " is a file"},
		{[]string{"fault", "drop", "x", "--yes", "--percent", "150"}, "--percent 150: write a number above 0 and up to 100"},
		{[]string{"fault", "drop", "x", "--yes", "--percent", "NaN"}, "--percent NaN: write a number"},
		{[]string{"fault", "drop", "--link", "a:b", "--percent", "-1"}, "--percent -1: write a number"},
		{[]string{"fault", "drop", "x", "--yes", "--percent", "half"}, "--percent half: that is not a number"},
		{[]string{"fault", "delay", "x", "--yes", "--by", "0s"}, "--by 0s: write how much longer"},
		{[]string{"fault", "cut-link", "a:b", "--for", "0s"}, "--for 0s: write how long"},
		{[]string{"fault", "stall-instance", "x", "--yes", "--for", "-1s"}, "--for -1s: write how long"},
		{[]string{"fault", "stall-instance", "x", "--yes", "--for", "2h"}, "at most 1h"},
		{[]string{"fault", "kill-node", "x", "--flows", "0"}, "--flows 0: "},
		{[]string{"demo", "--json", "/nope/x.json"}, "--json /nope/x.json: there is no folder /nope; make it, or name another file"},
		{[]string{"demo", "--json", "/"}, "--json /: that is a folder; name a file in it"},
		{[]string{"capture", "x", "-w", "/nope/x"}, "--write /nope/x: there is no folder /nope"},
		{[]string{"bench", "forward", "--json", "/nope/x"}, "--json /nope/x: there is no folder /nope"},
		{[]string{"bench", "forward", "--html", "/nope/x"}, "--html /nope/x: there is no folder /nope"},
		{[]string{"bench", "forward", "--markdown", "/nope/x"}, "/nope/x: there is no such file; make it, with two lines: <!-- results"},
		{[]string{"bench", "forward", "--markdown", p}, p + " does not say where results go; put two lines"},
		{[]string{"demo", "--down", "--keep"}, "leave out --keep"},
		{[]string{"token", "create", "--ttl", "0s"}, "--ttl and --uses are above 0"},
		{[]string{"token", "create", "--uses", "0"}, "--ttl and --uses are above 0"},
		{[]string{"backup", "/"}, "/ is a folder; name a file in it"},
		{[]string{"restore", p, "--state-dir", p + ".dir"}, "it ends too soon; name a file that onpath backup wrote"},
		{[]string{"images", "build", "/"}, "/ has no image.yaml; name a folder with a recipe in it"},
		{[]string{"up", "--uplink", "lo:banana"}, `there is no attachment "banana"; write router`},
	} {
		code, out, message := run(t, bin, append(c.args, "--server", "unix:///nowhere")...)
		if code != 2 || out != "" || !strings.Contains(message, c.want) || strings.Contains(message, "\n") {
			t.Errorf("%v: exit code %d, %q, %s", c.args, code, out, message)
		}
	}
}

// TestNoSuchTenant: a tenant that is not there is told from one that has nothing.
func TestNoSuchTenant(t *testing.T) {
	bin := testprogram.Path(t)
	store := mem.New(mem.Options{})
	furnish(t, store)
	server := "unix://" + serve(t, store)
	for _, c := range []struct {
		tenant string
		code   int
		want   string
	}{{onpath.DefaultTenant, 0, "no hosts"}, {"nosuch", 3, "tenant nosuch: it does not exist"}} {
		code, out, message := run(t, bin, "get", "hosts", "-t", c.tenant, "--server", server)
		if code != c.code || out != "" || !strings.Contains(message, c.want) {
			t.Errorf("%s: exit code %d, %q, %q", c.tenant, code, out, message)
		}
	}
}

// TestDryRunOfDelete: it says what would go, or what needs it, and changes
// nothing; names that get prints are names that delete takes.
func TestDryRunOfDelete(t *testing.T) {
	bin := testprogram.Path(t)
	store := mem.New(mem.Options{})
	furnish(t, store)
	server := "unix://" + serve(t, store)
	p := filepath.Join(t.TempDir(), "two.yaml")
	if err := os.WriteFile(p, []byte("apiVersion: onpath/v1alpha1\nkind: Hosts\nmetadata: {name: web}\nspec: {addresses: [192.0.2.1]}\n---\napiVersion: onpath/v1alpha1\nkind: Hosts\nmetadata: {name: mail}\nspec: {addresses: [192.0.2.2]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, message := run(t, bin, "apply", "-f", p, "--server", server); code != 0 {
		t.Fatal(message)
	}
	_, names, _ := run(t, bin, "get", "hosts", "-o", "name", "--server", server)
	if want := "default/mail\ndefault/web\n"; names != want {
		t.Fatalf("names are %q, want %q", names, want)
	}
	mixed := filepath.Join(t.TempDir(), "mixed.yaml")
	if err := os.WriteFile(mixed, []byte("apiVersion: onpath/v1alpha1\nkind: Hosts\nmetadata: {name: web}\nspec: {addresses: [192.0.2.1]}\n---\napiVersion: onpath/v1alpha1\nkind: Cloudlet\nmetadata: {name: fra1}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := contents(t, store)
	if code, _, message := run(t, bin, "delete", "-f", mixed, "--dry-run", "--server", server); code != 2 || !strings.Contains(message, "cloudlet fra1: it is used by node gw1") {
		t.Errorf("exit code %d, %s", code, message)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-f", mixed}, 2, "hosts default/web deleted (dry run)\n\nno instance and no rule would change\nnote: this is without cloudlet fra1; nothing is deleted as long as"},
		{[]string{"cloudlet", "fra1"}, 2, ""},
		{append([]string{"hosts"}, strings.Fields(names)...), 0, "hosts default/mail deleted (dry run)\nhosts default/web deleted (dry run)\n"},
		{[]string{"-f", p}, 0, "hosts default/web deleted (dry run)"},
		{[]string{"hosts", "web"}, 0, "hosts default/web deleted (dry run)\n\nno instance and no rule would change"},
		{[]string{"hosts", "wep"}, 3, "hosts default/wep was not there (dry run)"},
	} {
		code, out, message := run(t, bin, append(append([]string{"delete"}, c.args...), "--dry-run", "--server", server)...)
		if code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%v: exit code %d, %q, %s", c.args, code, out, message)
		}
	}
	if after := contents(t, store); after != before {
		t.Errorf("the store changed:\n%s\nwas:\n%s", after, before)
	}
}

// TestNoServer: what keeps a server from answering is named with the place and
// with what to do.
func TestNoServer(t *testing.T) {
	bin := testprogram.Path(t)
	dir := t.TempDir()
	dead, mute := filepath.Join(dir, "dead"), filepath.Join(dir, "mute")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	m, err := net.Listen("unix", mute)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	go func() { // takes connections, and lets go of them
		for {
			c, err := m.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	for _, c := range []struct {
		server string
		code   int
		want   []string
	}{
		{"unix://" + dead, 4, []string{dead + ": connection refused", "start one with `onpath up`"}},
		{"unix://" + filepath.Join(dir, "absent"), 4, []string{"absent: no such file or directory", "start one with `onpath up`"}},
		{"unix://" + mute, 4, []string{"the connection to " + mute + " broke", "try again"}},
		{"https://192.0.2.1:7443", 6, []string{"has not joined the server at 192.0.2.1:7443", "onpath token create"}},
	} {
		code, out, message := run(t, bin, "get", "nodes", "--server", c.server)
		if code != c.code || out != "" || strings.Contains(message, "\n") || strings.Contains(message, "Get \"") {
			t.Errorf("%s: exit code %d, %q, %s", c.server, code, out, message)
		}
		for _, w := range c.want {
			if !strings.Contains(message, w) {
				t.Errorf("%s: %q does not say %q", c.server, message, w)
			}
		}
	}
}
