package boundlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

func (x *tester) shown(v View) string {
	x.Helper()
	var out bytes.Buffer
	if err := Follow(x.Context(), x.dir, v, false, nil, &out); err != nil {
		x.Fatal(err)
	}
	return out.String()
}

// TestTimes: each line has the time when it began to come, over both files and wherever
// a read of the pipe ends; --since leaves out what was before.
func TestTimes(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	x := begin(t, 2000)
	type line struct {
		at   time.Time
		text string
	}
	var lines []line
	begun := false
	for n := range 150 {
		x.now = x.now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
		text := ""
		for range r.IntN(4) {
			if !begun {
				lines = append(lines, line{at: x.now})
			}
			part := fmt.Sprintf("%d%s", n, strings.Repeat("x", r.IntN(20)))
			if begun = r.IntN(3) == 0; !begun {
				part += "\n"
			}
			lines[len(lines)-1].text += part
			text += part
		}
		if x.Keep([]byte(text)) {
			t.Fatal("left out")
		}
	}
	want := func(from int) (stamped string) {
		for _, l := range lines[max(from, 0):] {
			stamped += l.at.UTC().Format(stampLayout) + l.text
		}
		return stamped
	}
	got := x.shown(View{Tail: -1, Timestamps: true})
	if _, rest, _ := strings.Cut(got, "\n"); len(got) < 2000 || !strings.HasSuffix(want(0), rest) {
		t.Errorf("seed %d: with times it is\n%smust be the end of\n%s", seed, got, want(0))
	}
	for range 20 {
		i := len(lines) - 1 - r.IntN(20)
		if got := x.shown(View{Tail: len(lines) - i, Timestamps: true}); got != want(i) {
			t.Fatalf("seed %d: the last %d lines are\n%smust be\n%s", seed, len(lines)-i, got, want(i))
		}
		for i > 0 && lines[i-1].at.Equal(lines[i].at) {
			i--
		}
		v := View{Tail: -1, Since: lines[i].at, Timestamps: true}
		if got := x.shown(v); got != want(i) {
			t.Fatalf("seed %d: since line %d it is\n%smust be\n%s", seed, i, got, want(i))
		}
		plain := ""
		for _, l := range lines[i:] {
			plain += l.text
		}
		if v.Timestamps = false; x.shown(v) != plain {
			t.Fatalf("seed %d: since line %d without times: %q, must be %q", seed, i, x.shown(v), plain)
		}
	}
}

// TestTimesBound: many short lines fill the times before the log; they go on in the next
// file.
func TestTimesBound(t *testing.T) {
	x := begin(t, 64<<10)
	for range 10_000 {
		x.now = x.now.Add(apart)
		x.Keep([]byte("a\n"))
	}
	for _, name := range []string{Now, Former} {
		if info, err := os.Stat(x.path(name + timesSuffix)); err != nil || info.Size() > minTimes {
			t.Errorf("times of %s: %v, %v", name, info, err)
		}
	}
	if got := x.shown(View{Tail: 1, Timestamps: true}); got != x.now.UTC().Format(stampLayout)+"a\n" {
		t.Errorf("the last line is %q", got)
	}
	if rest := strings.Trim(x.shown(View{Tail: -1}), "a\n"); rest != "" {
		t.Errorf("it has %q", rest)
	}
}

// TestNoTimes: of a log that has no times that is said, and nothing is made up.
func TestNoTimes(t *testing.T) {
	x := begin(t, 1000)
	x.Keep([]byte("one\n"))
	if err := os.Remove(x.path(Now + timesSuffix)); err != nil {
		t.Fatal(err)
	}
	if got := x.shown(View{Tail: -1, Timestamps: true}); got != "- one\n" {
		t.Errorf("%q", got)
	}
	if err := Follow(t.Context(), x.dir, View{Tail: -1, Since: x.now}, false, nil, &bytes.Buffer{}); !errors.Is(err, ErrNoTimes) {
		t.Errorf("since a time: %v", err)
	}
}

// TestOwnTimes: lines with times of their own are left out by them, wherever a write
// ends.
func TestOwnTimes(t *testing.T) {
	text := "2026-01-02T03:04:05Z one\npanic\ntime=2026-01-02T03:04:06.5Z level=INFO msg=two\nmore\n"
	for size := 1; size < len(text); size++ {
		var out bytes.Buffer
		w := OwnTimes(&out, time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC))
		for rest := []byte(text); len(rest) > 0; rest = rest[min(size, len(rest)):] {
			if _, err := w.Write(rest[:min(size, len(rest))]); err != nil {
				t.Fatal(err)
			}
		}
		if got := out.String(); got != text[strings.Index(text, "time="):] {
			t.Fatalf("in parts of %d bytes: %q", size, got)
		}
	}
	for line, want := range map[string]string{
		"2026-01-02T03:04:05.678Z - x\n": "- x\n", "- x\n": "x\n", "2026-01-02T03:04:05Z x\n": "2026-01-02T03:04:05Z x\n", "x": "x", "": "",
	} {
		if _, got := CutTime([]byte(line)); string(got) != want {
			t.Errorf("%q is cut to %q, must be %q", line, got, want)
		}
	}
}
