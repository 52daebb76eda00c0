package translog

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// TestMillion: a log of 10⁶ entries is opened with 64 MiB of memory at most, and shows that
// an entry is in it within 10 ms.
func TestMillion(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set")
	}
	const entries = 1_000_000
	dir := t.TempDir()
	l := openLog(t, dir)
	for from := 0; from < entries; {
		var lines []line
		for ; len(lines) < 50_000 && from < entries; from++ {
			e := entry(from)
			x, err := lineOf(e.Object, &e)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, x)
		}
		if err := l.append(lines); err != nil {
			t.Fatal(err)
		}
	}
	signed := l.tree
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	size := int64(0)
	for _, name := range []string{"entries", "hashes"} {
		if i, err := os.Stat(filepath.Join(dir, name)); err == nil {
			size += i.Size()
		}
	}
	l = nil
	before := memory()
	began := time.Now()
	l = openLog(t, dir)
	took, held := time.Since(began), memory()-before
	if l.tree != signed {
		t.Errorf("it has become another: %+v, was %+v", l.tree, signed)
	}
	began = time.Now()
	const proofs = 100
	for i := range int64(proofs) {
		if _, err := tlog.ProveRecord(entries, i*(entries/proofs), tlog.HashReaderFunc(l.readHashes)); err != nil {
			t.Fatal(err)
		}
	}
	each := time.Since(began) / proofs
	t.Logf("%d bytes of files; opened in %s, holds %d bytes; a proof takes %s", size, took, held, each)
	if held > 64<<20 || each > 10*time.Millisecond {
		t.Errorf("it holds %d bytes, and a proof takes %s", held, each)
	}
}

// memory is what the process has on its heap in use.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
