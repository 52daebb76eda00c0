package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/config"
)

// shop are the objects that the commands of these tests are about.
const shop = `
apiVersion: onpath/v1alpha1
kind: Cloudlet
metadata: {name: pop}
spec: {}
---
apiVersion: onpath/v1alpha1
kind: Node
metadata: {name: n1, labels: {zone: east}}
spec: {cloudlet: pop, underlay: {address: 192.0.2.1}}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: wall, labels: {app: shop}}
spec: {container: {image: docker.io/library/wall:1}, packets: keep, state: none}
---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: walls, labels: {app: shop}}
spec: {function: wall, instances: 2}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: web, labels: {app: shop}}
spec:
  from: {prefixes: [10.0.1.0/24]}
  to: {prefixes: [10.0.2.0/24]}
  through:
  - {deployment: walls}
`

// withServer runs a server with the objects of shop, whose file it gives.
func withServer(t *testing.T) (file string) {
	t.Helper()
	dir := t.TempDir()
	startServer(t, filepath.Join(dir, "server"))
	file = filepath.Join(dir, "shop.yaml")
	if err := os.WriteFile(file, []byte(shop), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, code := onpathRun("apply", "-f", file); code != exitOK {
		t.Fatalf("apply ends with code %d", code)
	}
	return file
}

// startServer runs a server on a folder, which commands then speak to.
func startServer(t *testing.T, folder string) (stop func()) {
	t.Helper()
	conf := config.Server{StateDir: folder, Socket: filepath.Join(t.TempDir(), "s.sock")}
	if err := conf.Complete(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, &conf, slog.New(slog.DiscardHandler), func() {}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	t.Setenv("ONPATH_SERVER", "unix://"+conf.Socket)
	t.Setenv("ONPATH_TENANT", "")
	c := client.Unix(conf.Socket)
	defer c.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := c.Version(ctx); err == nil {
			return stop
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// onpathRun executes one command line, and gives what it prints and its exit code.
func onpathRun(args ...string) (printed string, code int) {
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	addCompletion(root)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := root.ExecuteContext(ctx)
	if status := exitStatus(0); err != nil && !errors.As(err, &status) {
		printError(&out, err)
	}
	return out.String(), exitCode(err)
}

// TestHabits: commands that people know from kubectl, docker and tailscale do what is
// expected, or say in one line what to type.
func TestHabits(t *testing.T) {
	file := withServer(t)
	for _, c := range []struct {
		line string
		code int
		want string // in what is printed
	}{
		{"get all", 0, "CHAINS"},
		{"get chains", 0, "web"},
		{"get chain web", 0, "web"},
		{"get chain/web", 0, "web"},
		{"get chains,nodes", 0, "NODES"},
		{"get chains -l app=shop -o name", 0, "default/web"},
		{"get chains -l app=other", 0, "no chains"},
		{"get chains -o wide", 0, "web"},
		{"get chain web -o yaml", 0, "kind: Chain"},
		{"get chains -l app=", 0, "no chains"},
		{"get chains -l app>3", 2, "write KEY=VALUE"},
		{"describe chain web", 0, "web"},
		{"describe chains -l app=shop", 0, "web"},
		{"describe chain", 2, "onpath get chains lists them"},
		{"explain chain.spec.through", 0, "Exactly one of deployment and function"},
		{"explain chain.spec.select.destinationPorts", 0, "list of string or integer"},
		{"explain chain.spec.trough", 2, "did you mean through?"},
		{"diff -f " + file, 0, ""},
		{"apply -f " + file + " --dry-run", 0, "unchanged"},
		{"apply -f " + file + " --prune", 2, "--prune needs -l"},
		{"version", 0, "node n1"},
		{"cordon n1", 0, "takes no new instances"},
		{"drain -l zone=east", 0, "drains"},
		{"uncordon n1", 0, "takes instances"},
		{"drain -l zone=west", 3, "no node has the labels"},
		{"events", 0, ""},
		{"events --about chain/web", 0, "no events"},
		{"events --about node/default/n1", 2, "a node has no tenant"},
		{"top --once", 0, ""},
		{"top nodes --once", 0, "n1"},
		{"top chains --once", 0, "web"},
		{"top hosts --once", 2, "top shows instances, nodes or chains"},
		{"logs -l app=other", 3, "no instance has the labels"},
		{"logs", 2, "of which instance?"},
		{"logs web --since 5m --timestamps", 3, "chain default/web is not an instance; name one of its deployments: walls"},
		{"logs deployment/walls", 3, "deployment default/walls has no instance; onpath describe deployment default/walls says why"},
		{"exec deploy/walls -- ls", 3, "deployment default/walls has no instance"},
		{"logs wal", 3, "no deployment with an instance called"},
		{"get deploy", 0, "walls"},
		{"get svc", 0, "no services"},
		{"get no", 0, "n1"},
		{"describe deploy/walls", 0, "walls"},
		{"history", 2, "takes 1 to 3 arguments, and got 0; usage: onpath history KIND NAME"},
		{"rollback", 2, "takes 1 to 2 arguments, and got 0; usage: onpath rollback KIND NAME"},
		{"verify nope", 3, "onpath get chains lists what there is"},
		{"ledger list nosuch", 3, "it does not exist; onpath get tenants lists what there is"},
		{"get chains --server nope", 2, "a server is named unix:///path or https://host:port"},
		{"demo nope", 2, `onpath demo has no command "nope"`},
		{"fault kill-node nope --yes", 3, "node nope: it does not exist"},
		{"function build nope.c", 2, "nope.c: there is no such file or folder"},
		{"rm web", 2, "onpath delete"},
		{"ls", 2, "onpath get all"},
		{"info", 2, "onpath doctor"},
		{"ssh walls", 2, "onpath exec INSTANCE -- sh"},
		{"taint nodes n1 a=b:NoSchedule", 2, "onpath cordon NODE"},
		{"autoscale deployment walls", 2, "spec.scaling"},
		{"reserve", 2, "onpath apply -f FILE"},
		{"auth whoami", 2, "onpath version"},
		{"logs web --since=-5m", 2, "such as 90s, 5m or 1h30m"},
		{"completion bash", 0, "bash completion"},
		{"completion zsh", 0, "compdef"},
		{"completion fish", 0, "fish completion"},
		{"account nosuch", exitNotFound, "it does not exist; onpath get tenants lists what there is"},
		{"completion tcsh", exitBadInput, `has no command "tcsh"`},
		{"__complete get cha", 0, "chains"},
		{"__complete get chain w", 0, "web"},
		{"__complete explain chain.spec.th", 0, "chain.spec.through"},
		{"__complete get chains -o w", 0, "wide"},
		{"__complete get chains -t de", 0, "default"},
		{"__complete verify w", 0, "web"},
		{"__complete enable c", 0, "chain"},
		{"__complete token create --cloudlet p", 0, "pop"},
		{"get pods", 2, "onpath get instances lists what runs"},
		{"get chains -A", 2, "without -t it tells of all tenants"},
		{"get chains -n default", 2, "write -t TENANT"},
		{"logs web -n 5", 2, "write --tail N"},
		{"apply " + file, 2, "write -f before a file"},
		{"apply -f https://example.com/chain.yaml", 2, "files are read, not URLs"},
		{"apply -f " + file + " --prune -l app=nix", 0, "nothing to do"},
		{"edit chain web", 2, "onpath get KIND NAME -o yaml > FILE"},
		{"rollout undo chain web", 2, "onpath rollback"},
		{"scale chain web --replicas 3", 2, "spec.through[].instances"},
		{"create -f " + file, 2, "onpath apply -f FILE"},
		{"ps", 2, "onpath get instances"},
		{"inspect web", 2, "onpath describe"},
		{"run nginx", 2, "onpath apply -f FILE"},
		{"status", 2, "onpath get all"},
		{"ping n1", 2, "onpath measure"},
		{"netcheck", 2, "onpath doctor"},
		{"down", 2, "onpath node off"},
		{"login", 2, "onpath join"},
		{"api-resources", 2, "onpath explain"},
		{"disable chain web --element walls", 0, "chain default/web changed"},
		{"disable chain/web --element nope", 3, "its elements are walls"},
		{"enable chain web --element walls", 0, "chain default/web changed"},
		{"disable chain web --dry-run", 0, "changed (dry run)"},
		{"enable chain", 2, "which chain?"},
		{"delete chains -l app=shop --dry-run", 0, "chain default/web deleted (dry run)"},
		{"delete chain/web", 0, "chain default/web deleted"},
		{"delete chain web", 3, "does not exist; onpath get chains lists what there is"},
	} {
		got, code := onpathRun(strings.Fields(c.line)...)
		if code != c.code || !strings.Contains(got, c.want) {
			t.Errorf("onpath %s: code %d, must be %d, with %q:\n%s", c.line, code, c.code, c.want, got)
		}
		if lines := strings.Count(got, "\n"); code == exitBadInput && lines != 1 {
			t.Errorf("onpath %s: %d lines say what is wrong, must be one:\n%s", c.line, lines, got)
		}
	}
}

// TestDiffAndPrune: what differs is shown and changes nothing; what no file has any
// more goes with the rest.
func TestDiffAndPrune(t *testing.T) {
	file := withServer(t)
	changed := strings.Replace(shop, "instances: 2", "instances: 3", 1)
	changed = changed[:strings.LastIndex(changed, "---")] // without the chain
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		line, want, without string
		code                int
	}{
		{"diff -f " + file, "- spec.instances: 2\n+ spec.instances: 3\n", "web", exitFailed},
		{"diff -f " + file, "deployment default/walls would change", "", exitFailed},
		{"apply -f " + file + " --prune -l app=shop --dry-run", "chain default/web deleted (dry run)", "cloudlet", 0},
		{"get chain web", "web", "", 0},
		{"apply -f " + file + " --prune -l app=shop", "chain default/web deleted\n", "node", 0},
		{"get chains", "no chains", "", 0},
		{"diff -f " + file, "", "d", 0},
	}
	for _, c := range steps {
		got, code := onpathRun(strings.Fields(c.line)...)
		if code != c.code || !strings.Contains(got, c.want) || c.without != "" && strings.Contains(got, c.without) {
			t.Errorf("onpath %s: code %d, must be %d, with %q, without %q:\n%s", c.line, code, c.code, c.want, c.without, got)
		}
	}
}

// TestHistory: versions are kept with who wrote them, twenty of them; a rollback goes
// back by one, and a rollback of it restores what was before.
func TestHistory(t *testing.T) {
	file := withServer(t)
	instances := func() string {
		got, _ := onpathRun("get", "deployment", "walls", "-o", "json")
		_, rest, _ := strings.Cut(got, `"instances": `)
		n, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSuffix(n, ",")
	}
	write := func(n int) {
		t.Helper()
		text := strings.Replace(shop, "instances: 2", fmt.Sprintf("instances: %d", n), 1)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, code := onpathRun("apply", "-f", file); code != exitOK {
			t.Fatal(got)
		}
	}
	run := func(line string, code int, want string) {
		t.Helper()
		if got, c := onpathRun(strings.Fields(line)...); c != code || !strings.Contains(got, want) {
			t.Errorf("onpath %s: code %d, must be %d, with %q:\n%s", line, c, code, want, got)
		}
	}
	run("rollback deployment walls", exitNotFound, "no version before the present one")
	write(3)
	run("history deployment walls", 0, "spec.instances")
	run("history deployment walls", 0, "operator/")
	run("history deployment/walls 1", 0, "instances: 2")
	run("rollback deployment walls --dry-run", 0, "changed (dry run)")
	for _, want := range []string{"2", "3", "2"} {
		run("rollback deployment walls", 0, "goes back to version")
		if n := instances(); n != want {
			t.Errorf("after a rollback there are %s instances, must be %s", n, want)
		}
	}
	run("rollback deployment walls --to 99", exitNotFound, "there is no version 99")
	run("rollback deployment walls --to 1", 0, "unchanged")
	for n := 4; n < 30; n++ {
		write(n)
	}
	got, _ := onpathRun("history", "deployment", "walls")
	if rows := strings.Count(got, "\n") - 1; rows != 20 {
		t.Errorf("%d versions are kept, must be 20:\n%s", rows, got)
	}
	run("rollback deployment walls --to 20 --confirm 60s", 0, "onpath confirm")
	run("history chain web", 0, "1 *")
	run("delete chain web", 0, "deleted")
	run("history chain web", exitNotFound, "")
	run("history instance x", exitBadInput, "no history")
}

// TestPrefixed: of several instances each line has its instance's name, whole.
func TestPrefixed(t *testing.T) {
	var out bytes.Buffer
	var mu sync.Mutex
	a, b := &prefixed{w: &out, mu: &mu, prefix: "a: "}, &prefixed{w: &out, mu: &mu, prefix: "b: "}
	for _, x := range []struct {
		to   *prefixed
		text string
	}{{a, "one\ntw"}, {b, "1\n2\n3"}, {a, "o\n"}} {
		if _, err := x.to.Write([]byte(x.text)); err != nil {
			t.Fatal(err)
		}
	}
	a.end()
	b.end()
	if got := out.String(); got != "a: one\nb: 1\nb: 2\na: two\nb: 3\n" {
		t.Errorf("%q", got)
	}
}

// TestLabelsOf: an instance has the labels of its deployment and of its chains.
func TestLabelsOf(t *testing.T) {
	i := &onpath.Instance{Metadata: onpath.Metadata{Name: "walls-1", Tenant: "default"}, Spec: onpath.InstanceSpec{Deployment: "walls", Node: "n1"}}
	d := &onpath.Deployment{Metadata: onpath.Metadata{Name: "walls", Tenant: "default", Labels: map[string]string{"tier": "front"}}}
	c := &onpath.Chain{Metadata: onpath.Metadata{Name: "web", Tenant: "default", Labels: map[string]string{"app": "shop", "tier": "x"}},
		Spec: onpath.ChainSpec{Through: []onpath.Element{{Deployment: "walls"}}}}
	other := &onpath.Chain{Metadata: onpath.Metadata{Name: "o", Tenant: "other", Labels: map[string]string{"app": "o"}}, Spec: c.Spec}
	got := labelsOf(i, []onpath.Object{c, other, d})
	if want := map[string]string{"app": "shop", "tier": "front", "deployment": "walls", "node": "n1"}; !maps.Equal(got, want) {
		t.Errorf("got %v, must be %v", got, want)
	}
}
