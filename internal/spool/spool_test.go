package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// TestFullDisk: what does not fit is refused, and what comes once there is room is kept.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s, err := Open(filepath.Join(dir, "spool"), 0)
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 48<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	line := bytes.Repeat([]byte("x"), 3000)
	kept := uint64(0)
	for range 20 {
		if _, err = s.Append(line); err != nil {
			break
		}
		kept++
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("after %d lines: %v, must be that no space is left", kept, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Append([]byte("again")); err != nil || n != kept+1 {
		t.Fatalf("line %d, %v; must be line %d", n, err, kept+1)
	}
	var last []byte
	if err := s.Read(kept, func(_ uint64, l []byte) error { last = bytes.Clone(l); return nil }); err != nil || string(last) != "again" {
		t.Errorf("the last line is %.20q, %v", last, err)
	}
}
