package etcd_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/etcd"
)

const firstLog = "0000000000000000-0000000000000000.wal"

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// killAt starts a writer on dir and kills it as soon as a file matches pattern
// below dir; false if the file came and went unseen.
func killAt(t *testing.T, dir, pattern string) bool {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if m, _ := filepath.Glob(filepath.Join(dir, pattern)); len(m) > 0 {
			return true
		}
		if _, err := os.Stat(filepath.Join(dir, "etcd/member/wal", firstLog)); err == nil {
			return false
		}
	}
	t.Fatalf("neither %s nor a whole store in 30 s", pattern)
	return false
}

// TestKilledInFirstStart kills a server in its first start, where its log is
// there already and empty; the next start works, and says what it did.
func TestKilledInFirstStart(t *testing.T) {
	for _, at := range []string{"etcd*/member/snap/db", "etcd*/member/wal.tmp", "etcd*/member/wal/" + firstLog} {
		for seen, tries := 0, 0; seen < 2; tries++ {
			dir := t.TempDir()
			if killAt(t, dir, at) {
				seen++
			} else if tries < 20 {
				continue // on a busy machine we are late
			} else {
				t.Fatalf("%s was not seen in %d starts", at, tries)
			}
			_, err := os.Stat(filepath.Join(dir, "etcd"))
			finished := err == nil // it was faster than the kill
			if _, err := os.Stat(filepath.Join(dir, "etcd/member/wal", firstLog)); finished && err != nil {
				t.Errorf("killed at %s, there is half a store under the name of a whole one: %v", at, err)
			}
			var log lines
			s := open(t, etcd.Options{Dir: dir, Logger: log.logger()})
			if err := commit(t.Context(), s, put(chain("x", 1), 0)); err != nil {
				t.Fatal(err)
			}
			if !finished && !strings.Contains(log.String(), "the first start of the store was interrupted") {
				t.Errorf("killed at %s, nothing is said:\n%s", at, log.String())
			}
			if _, err := os.Stat(filepath.Join(dir, "etcd.new")); err == nil {
				t.Error("etcd.new stays")
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestFirstStartCancelled ends the first start by its context.
func TestFirstStartCancelled(t *testing.T) {
	dir := t.TempDir()
	for _, after := range []time.Duration{0, 5, 30, 60} {
		ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
		s, err := etcd.Open(ctx, etcd.Options{Dir: dir})
		cancel()
		if err == nil {
			_ = s.Close()
			continue
		}
		if !strings.Contains(err.Error(), "deadline") {
			t.Errorf("after %d ms: %v", after, err)
		}
	}
	s := open(t, etcd.Options{Dir: dir})
	if err := commit(t.Context(), s, put(chain("x", 1), 0)); err != nil {
		t.Fatal(err)
	}
}

// TestFirstStartIsQuiet: a new store has no error to tell of, and a store with
// data is never made anew, whatever lies beside it.
func TestFirstStartIsQuiet(t *testing.T) {
	dir := t.TempDir()
	var log lines
	s := open(t, etcd.Options{Dir: dir, Logger: log.logger()})
	if err := commit(t.Context(), s, put(chain("x", 1), 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"level=ERROR", "schema version"} {
		if strings.Contains(log.String(), bad) {
			t.Errorf("%q in the log:\n%s", bad, log.String())
		}
	}
	other := filepath.Join(dir, "etcd.new", "member")
	if err := os.MkdirAll(other, 0o700); err != nil {
		t.Fatal(err)
	}
	again := open(t, etcd.Options{Dir: dir})
	if _, err := again.Get(t.Context(), onpath.KeyOf(chain("x", 0))); err != nil {
		t.Errorf("after an unfinished store was beside it: %v", err)
	}
}

// TestDamaged holds a store with data against what disks do to its log: it is
// refused soon, in words, and its files stay.
func TestDamaged(t *testing.T) {
	whole := t.TempDir()
	s := open(t, etcd.Options{Dir: whole})
	for i := range 50 {
		if err := commit(t.Context(), s, put(chain(fmt.Sprint("c", i), 1), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	used := usedBytes(t, filepath.Join(whole, "etcd", "member", "wal", firstLog))
	for name, c := range map[string]struct {
		do   func(t *testing.T, wal string)
		want string
	}{
		"garbage":   {func(t *testing.T, wal string) { overwrite(t, wal, 0, bytes.Repeat([]byte{0xa5}, used)) }, "log"},
		"flip":      {func(t *testing.T, wal string) { overwrite(t, wal, int64(used/2), bytes.Repeat([]byte{0xa5}, 16)) }, "log"},
		"zeros":     {func(t *testing.T, wal string) { overwrite(t, wal, 0, make([]byte, used)) }, "log"},
		"no bytes":  {func(t *testing.T, wal string) { truncate(t, wal, 0) }, "log"},
		"beginning": {func(t *testing.T, wal string) { truncate(t, wal, 100) }, "log"},
		"half":      {func(t *testing.T, wal string) { truncate(t, wal, int64(used/2)) }, "cut off"},
		"gone":      {func(t *testing.T, wal string) { remove(t, wal) }, "there is no log"},
		"database": {func(t *testing.T, wal string) {
			truncate(t, filepath.Join(filepath.Dir(filepath.Dir(wal)), "snap", "db"), 5000)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(filepath.Join(dir, "etcd"), os.DirFS(filepath.Join(whole, "etcd"))); err != nil {
				t.Fatal(err)
			}
			wal := filepath.Join(dir, "etcd", "member", "wal", firstLog)
			c.do(t, wal)
			began := time.Now()
			s, err := etcd.Open(t.Context(), etcd.Options{Dir: dir})
			if err == nil {
				_ = s.Close()
				t.Fatal("it was opened")
			}
			if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "restore the directory from a backup") {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("it took %s", took)
			}
			t.Log(time.Since(began), err)
			if _, err := os.Stat(filepath.Join(dir, "etcd", "member", "snap", "db")); err != nil {
				t.Error(err)
			}
		})
	}
}

// usedBytes is the length of a preallocated file without the zeros at its end.
func usedBytes(t *testing.T, path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return len(bytes.TrimRight(b, "\x00"))
}

func overwrite(t *testing.T, path string, at int64, b []byte) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string, size int64) {
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
