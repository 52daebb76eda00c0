package e2e

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
)

// TestGeneratedClient: a client that openapi-python-client makes of the API's document
// declares the chain of README's five minutes, sees it, and takes it away.
func TestGeneratedClient(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it needs a program of others'")
	}
	generator, err := exec.LookPath("openapi-python-client")
	if err != nil {
		t.Skip("openapi-python-client is not installed: pip install openapi-python-client")
	}
	ctx := need(t, 3*time.Minute)
	dir := t.TempDir()
	socket := strings.TrimPrefix(testbed.Socket(), "unix://")
	answer, err := client.Unix(socket).HTTP().Get("http://onpath/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	document, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "openapi.json"), document, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	generate := exec.CommandContext(ctx, generator, "generate", "--path", "openapi.json", "--meta", "none", "--output-path", "generated")
	generate.Dir = dir
	said, err := generate.CombinedOutput()
	if err != nil || strings.Contains(string(said), "Cannot parse request") {
		t.Fatalf("%v: %s", err, said)
	}
	if err := os.WriteFile(filepath.Join(dir, "objects.json"), fiveMinutes(t), 0o644); err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") })}
	serveWeb(t, "origin", web.Handler.ServeHTTP)
	var l net.Listener
	in(t, "origin", func() (err error) { l, err = net.Listen("tcp", ":8080"); return err })
	var wg sync.WaitGroup
	t.Cleanup(func() { web.Close(); wg.Wait() })
	wg.Go(func() { _ = web.Serve(l) })
	look := func(when string, blocked bool) {
		t.Helper()
		if body, _, err := fromClient(ctx, "http://10.9.0.2/"); body != "page" {
			t.Errorf("%s: port 80 answers %q, %v", when, body, err)
		}
		if body, _, err := fromClient(ctx, "http://10.9.0.2:8080/"); (body == "") != blocked {
			t.Errorf("%s: port 8080 answers %q, %v; blocked: %t", when, body, err, blocked)
		}
	}
	look("before", false)
	script, err := filepath.Abs("testdata/chain.py")
	if err != nil {
		t.Fatal(err)
	}
	python := "python3"
	if own := filepath.Join(filepath.Dir(generator), python); exists(own) {
		python = own
	}
	run := exec.CommandContext(ctx, python, script, socket, "objects.json")
	run.Dir, run.Env, run.Stderr = dir, append(os.Environ(), "PYTHONPATH="+dir), os.Stderr
	into, err := run.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	from, err := run.StdoutPipe()
	if err == nil {
		err = run.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(from)
	for _, step := range []struct {
		says    string
		blocked bool
	}{{"in place", true}, {"deleted", false}} {
		if !lines.Scan() || lines.Text() != step.says {
			t.Errorf("the client says %q instead of %q", lines.Text(), step.says)
			break
		}
		if !step.blocked { // the gateway hears of the deletion in its own time
			if err := testbed.WaitFor(ctx, "port 8080 answers again", time.Minute, func() (bool, error) {
				body, _, _ := fromClient(ctx, "http://10.9.0.2:8080/")
				return body == "page", nil
			}); err != nil {
				t.Error(err)
			}
		}
		look(step.says, step.blocked)
		_, _ = io.WriteString(into, "\n")
	}
	into.Close()
	if err := run.Wait(); err != nil {
		t.Error(err)
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// fiveMinutes are the objects of README's own chain, for the test's network.
func fiveMinutes(t *testing.T) []byte {
	t.Helper()
	file := "../../examples/own/chain.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := manifest.Parse(text, file, filepath.Dir(file))
	if err != nil || len(docs) != 2 {
		t.Fatalf("%d documents, %v", len(docs), err)
	}
	chain := docs[1].Object.(*onpath.Chain)
	chain.Spec.From, chain.Spec.To = onpath.Endpoints{Hosts: "client"}, onpath.Endpoints{Hosts: "origin"}
	out, err := json.Marshal([]any{docs[0].Object, chain})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
