package boundlog

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tester has a log whose time is told to it.
type tester struct {
	*testing.T
	*File
	now time.Time
}

func begin(t *testing.T, limit int64) *tester {
	x := &tester{T: t, now: time.Unix(1_000_000, 0)}
	var err error
	if x.File, err = Open(t.TempDir(), limit, func() time.Time { return x.now }); err != nil {
		t.Fatal(err)
	}
	return x
}

// text is what the log has now, both files.
func (x *tester) text() string {
	x.Helper()
	var out string
	for _, name := range []string{Former, Now} {
		data, err := os.ReadFile(x.path(name))
		if err != nil && !os.IsNotExist(err) {
			x.Fatal(err)
		}
		if int64(len(data)) > x.limit {
			x.Fatalf("%s has %d bytes, %d is the limit", name, len(data), x.limit)
		}
		out += string(data)
	}
	return out
}

func TestBound(t *testing.T) {
	x := begin(t, 100)
	var all string
	for i := range 200 {
		line := fmt.Sprintf("line %d\n", i)
		all += line
		if x.Keep([]byte(line)) {
			t.Fatal("left out")
		}
		if got := x.text(); !strings.HasSuffix(all, got) || len(got) < min(len(all), 100) {
			t.Fatalf("after line %d: %q", i, got)
		}
	}
	if x.Keep([]byte(all)); !strings.HasSuffix(all, x.text()) { // many files at once
		t.Errorf("after all at once: %q", x.text())
	}
	if sum, why := LeftOut(x.dir); sum != 0 || why != "" {
		t.Errorf("left out: %d %q", sum, why)
	}
}

// TestRate: what comes too fast is left out, and a line says how much, when there is
// room for a longer stretch again.
func TestRate(t *testing.T) {
	x := begin(t, 3*Rate)
	chunk := []byte(strings.Repeat("a line of sixteen bytes of text\n", 1024))
	kept := 0
	for !x.Keep(chunk) {
		kept += len(chunk)
	}
	if kept != 3*Rate {
		t.Errorf("%d bytes are kept at once, want %d", kept, 3*Rate)
	}
	x.now = x.now.Add(100 * time.Millisecond)
	if !x.Keep(chunk) {
		t.Error("it goes on for a line or two")
	}
	x.now = x.now.Add(400 * time.Millisecond)
	if x.Keep([]byte("e end of a line\nnext\n")) {
		t.Error("it does not go on")
	}
	missing := int64(2*len(chunk) + len("e end of a line\n"))
	want := fmt.Sprintf("text\nonpath: %d bytes are left out here: it writes more than 4 MiB a second\nnext\n", missing)
	if !strings.HasSuffix(x.text(), want) {
		t.Errorf("the log ends %q", x.text()[len(x.text())-200:])
	}
	x.Note(true)
	if sum, why := LeftOut(x.dir); sum != missing || why != "it writes more than 4 MiB a second" {
		t.Errorf("left out: %d %q, want %d", sum, why, missing)
	}
	if _, why := LeftOut(t.TempDir()); why != "" {
		t.Errorf("of no log: %q", why)
	}
}

// TestNoFile: a log that cannot be written goes on when it can be.
func TestNoFile(t *testing.T) {
	x := begin(t, 10)
	x.Keep([]byte("0123456789"))
	if err := os.Mkdir(x.path(Former), 0o700); err != nil {
		t.Fatal(err)
	}
	if !x.Keep([]byte("lost\n")) {
		t.Error("a file took the place of a folder")
	}
	if err := os.Remove(x.path(Former)); err != nil {
		t.Fatal(err)
	}
	if !x.Keep([]byte("too soon\n")) {
		t.Error("it is tried at once")
	}
	x.now = x.now.Add(retry)
	if x.Keep([]byte("\nkept\n")) {
		t.Error("it is not tried again")
	}
	if got := x.text(); !strings.HasSuffix(got, "kept\n") {
		t.Errorf("the log: %q", got)
	}
	if sum, _ := LeftOut(x.dir); sum == 0 {
		t.Error("nothing is said to be left out")
	}
}

// TestProcess: the program, started as containerd's shim does it, keeps what comes by
// both pipes until they end.
func TestProcess(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	query := URI(self, dir, 1000).Query()
	c := exec.Command(self, command, query.Get(command))
	c.Env = []string{"CONTAINER_ID=x"}
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	outR, outW := pipe()
	errR, errW := pipe()
	readyR, readyW := pipe()
	c.ExtraFiles = []*os.File{outR, errR, readyW}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	readyW.Close()
	if n, _ := readyR.Read(make([]byte, 1)); n != 0 {
		t.Error("it is to close the pipe when it is ready")
	}
	_ = c.Process.Signal(os.Interrupt) // is not heard
	fmt.Fprintln(outW, "printed")
	outW.Close()
	fmt.Fprintln(errW, "complained")
	errW.Close()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, Now))
	if s := string(got); err != nil || !strings.Contains(s, "printed\n") || !strings.Contains(s, "complained\n") {
		t.Errorf("the log: %q, %v", s, err)
	}
}
