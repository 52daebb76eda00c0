package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/funcbuild"
)

// TestDocumentedRelay: the relay of the manual gives each of several clients the whole file, a
// client that reads late too, and answers where there is nothing to give.
func TestDocumentedRelay(t *testing.T) {
	manual, err := os.ReadFile("../docs/modules.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(manual), "This module hands on whatever its origin has")
	_, rest, _ = strings.Cut(rest, "```c\n")
	source, _, _ := strings.Cut(rest, "```\n")
	file := randomBytes(3 << 20)
	var broken atomic.Bool
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(file)))
		if broken.Load() {
			_, _ = w.Write(file[:len(file)/2])
			return
		}
		_, _ = w.Write(file)
	}))
	defer origin.Close()
	path := filepath.Join(t.TempDir(), "relay.c")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(source, "http://origin.example", origin.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, err := funcbuild.Compile(t.Context(), path, funcbuild.ToWasm)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := newServing(t, 0)
	s.set(code, nil, strings.TrimPrefix(origin.URL, "http://"))

	slow, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprintf(slow, "GET / HTTP/1.0\r\n\r\n")
	client := &http.Client{Timeout: time.Minute}
	get := func() (int, []byte, error) {
		resp, err := client.Get(s.url)
		if err != nil {
			return 0, nil, err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, b, err
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if status, b, err := get(); err != nil || status != 200 || !bytes.Equal(b, file) {
				t.Errorf("%d, %d bytes of %d: %v", status, len(b), len(file), err)
			}
		})
	}
	all.Wait()
	if b, err := io.ReadAll(slow); err != nil || !bytes.HasSuffix(b, file) {
		t.Errorf("the slow client: %d bytes of %d: %v", len(b), len(file), err)
	}
	broken.Store(true)
	if status, b, err := get(); err == nil || status != 200 || !bytes.HasPrefix(file, b) {
		t.Errorf("an answer that breaks off: %d, %d bytes, %v", status, len(b), err)
	}
	origin.CloseClientConnections()
	origin.Close()
	if status, _, err := get(); err != nil || status != http.StatusBadGateway {
		t.Errorf("no origin: %d, %v", status, err)
	}
	s.set(code, nil, "origin.example")
	if status, _, err := get(); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("a host that may not be fetched from: %d, %v", status, err)
	}
}

// TestRefusedFetch: of fetches that the node refuses the log says host, address and remedy, once.
func TestRefusedFetch(t *testing.T) {
	s, _ := newCDN(t, nil)
	var said bytes.Buffer
	if err := s.e.do(t.Context(), func() { s.e.log = slog.New(slog.NewTextHandler(&said, nil)) }); err != nil {
		t.Fatal(err)
	}
	s.dial = func(context.Context, string) (net.Conn, error) {
		return nil, &control.RefusedError{Err: errors.New("10.0.2.2 is not public: add it to node.fetchTargets")}
	}
	for range 5 {
		if status, _, b := s.body("/page.html"); status != http.StatusBadGateway {
			t.Errorf("%d %q", status, b)
		}
	}
	if n := s.numbers(); n.FetchFailed != 5 {
		t.Errorf("%+v", n)
	}
	if err := s.e.do(t.Context(), func() {
		if log := said.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "host=127.0.0.1:") ||
			!strings.Contains(log, "10.0.2.2 is not public") || !strings.Contains(log, "node.fetchTargets") {
			t.Errorf("the log has %q", log)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
