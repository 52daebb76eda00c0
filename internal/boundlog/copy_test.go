package boundlog

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sips takes what is written in small parts only.
type sips struct {
	t   *testing.T
	got bytes.Buffer
}

func (s *sips) Write(p []byte) (int, error) {
	if len(p) > 1<<20 {
		s.t.Errorf("%d bytes are written at once", len(p))
	}
	return s.got.Write(p)
}

// lastLines are the last n lines of a text.
func lastLines(text string, n int) string {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	if strings.HasSuffix(text, "\n") {
		lines[len(lines)-1] += "\n"
	}
	if n < 0 {
		n = len(lines)
	}
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

func fileOf(t *testing.T, text string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestCopy: the last lines over both files, wherever they and blocks of them end.
func TestCopy(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	random := func() string {
		var b strings.Builder
		for range r.IntN(6) {
			b.WriteString(strings.Repeat("x", r.IntN(3)*r.IntN(40_000)))
			b.WriteString([]string{"\n", "\n", "\n\n", ""}[r.IntN(4)])
		}
		return b.String()
	}
	for range 500 {
		old, text, n := random(), random(), r.IntN(8)-1
		now, s := fileOf(t, text), &sips{t: t}
		if err := newViewer(s, View{Tail: n}).both(file{f: fileOf(t, old)}, file{f: now}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if want := lastLines(old+text, n); s.got.String() != want {
			t.Fatalf("seed %d: of %d and %d bytes the last %d lines are %d bytes, must be %d", seed, len(old), len(text), n, s.got.Len(), len(want))
		}
		if at, err := now.Seek(0, io.SeekCurrent); err != nil || at != int64(len(text)) {
			t.Fatalf("seed %d: it is left at %d of %d, %v", seed, at, len(text), err)
		}
	}
}

// TestCopyLarge: neither a whole log nor one line of it comes in one part.
func TestCopyLarge(t *testing.T) {
	var all strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&all, "line %d\n", i)
	}
	old, text := all.String(), strings.Repeat("x", 3<<20)+"\nlast\n"
	for n, want := range map[int]int{-1: len(old) + len(text), 1: len("last\n"), 2: len(text), 3: len("line 299999\n") + len(text)} {
		s := &sips{t: t}
		if err := newViewer(s, View{Tail: n}).both(file{f: fileOf(t, old)}, file{f: fileOf(t, text)}); err != nil || s.got.Len() != want {
			t.Errorf("the last %d lines are %d bytes, %v; must be %d", n, s.got.Len(), err, want)
		}
	}
	s := &sips{t: t}
	if err := newViewer(s, View{Tail: 9}).both(file{}, file{f: fileOf(t, text)}); err != nil || s.got.Len() != len(text) {
		t.Errorf("without a former file: %d bytes, %v", s.got.Len(), err)
	}
}
