package etcd_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/etcd"
)

// TestDamagedPage overwrites the pages of the database, one after another: the store
// is refused in words, or the page was free and nothing is missing.
func TestDamagedPage(t *testing.T) {
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
	database := filepath.Join("etcd", "member", "snap", "db")
	data, err := os.ReadFile(filepath.Join(whole, database))
	if err != nil {
		t.Fatal(err)
	}
	page, refused, tried := os.Getpagesize(), 0, 0
	for p := 2; p < len(data)/page && tried < 12; p++ {
		if len(bytes.TrimRight(data[p*page:(p+1)*page], "\x00")) == 0 {
			continue // never used
		}
		tried++
		dir := t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, "etcd"), os.DirFS(filepath.Join(whole, "etcd"))); err != nil {
			t.Fatal(err)
		}
		overwrite(t, filepath.Join(dir, database), int64(p*page), bytes.Repeat([]byte{0xa5}, page))
		s, err := etcd.Open(t.Context(), etcd.Options{Dir: dir})
		if err != nil {
			if refused++; onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), "restore the directory from a backup") {
				t.Errorf("page %d: %v", p, err)
			}
		} else {
			list, _, err := s.List(t.Context(), onpath.KindChain, "")
			if err != nil || len(list) != 50 {
				t.Errorf("page %d: the store was opened with %d of 50 chains, %v", p, len(list), err)
			}
			_ = s.Close()
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d pages, %d refused", tried, refused)
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}
