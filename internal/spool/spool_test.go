package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func lines(t *testing.T, s *Spool, after uint64) (out []string) {
	t.Helper()
	last := after
	err := s.Read(after, func(n uint64, l []byte) error {
		if n <= last {
			t.Errorf("line %d comes behind %d", n, last)
		}
		last = n
		out = append(out, string(l))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSpool: what was appended is read in order, by a later process too, but for half a line.
func TestSpool(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for k := range 50 {
				if _, err := s.Append(fmt.Appendf(nil, "%d.%d", i, k)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := lines(t, s, 0); len(got) != 1000 {
		t.Fatalf("%d lines of 1000", len(got))
	}
	s.Close()
	f, _ := os.OpenFile(filepath.Join(dir, "00000000000000000001.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	_, _ = f.WriteString("half a l")
	f.Close()
	if s, err = Open(dir, 0); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Append([]byte("more"), []byte("yet more")); n != 1002 || err != nil {
		t.Fatal(n, err)
	}
	if got := lines(t, s, 1000); strings.Join(got, ",") != "more,yet more" {
		t.Errorf("%q", got)
	}
}

// TestDrop: what was passed on goes, in whole segments, and numbers go on where they were.
func TestDrop(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	long := []byte(strings.Repeat("x", 100_000))
	var last uint64
	for range 75 {
		if last, err = s.Append(long); err != nil {
			t.Fatal(err)
		}
	}
	for err == nil {
		_, err = s.Append(long)
	}
	if !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	last, _ = s.Last()
	if err := s.Drop(last); err != nil {
		t.Fatal(err)
	}
	if left := len(lines(t, s, 0)); left > 3 {
		t.Errorf("%d lines are left", left)
	}
	s.Close()
	if s, err = Open(dir, 8<<20); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Append([]byte("next")); n != last+1 || err != nil {
		t.Errorf("the next is %d, must be %d: %v", n, last+1, err)
	}
	if err := s.Trim(0, time.Time{}); err != nil {
		t.Fatal(err)
	}
}
