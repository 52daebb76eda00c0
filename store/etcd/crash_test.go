package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/store/etcd"
)

// crashDir makes this test binary a writer that reports each acknowledged
// write on its standard output until it is killed.
const crashDir = "ONPATH_TEST_CRASH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		writeForever(dir)
	}
	os.Exit(m.Run())
}

func writeForever(dir string) {
	s, err := etcd.Open(context.Background(), etcd.Options{Dir: dir})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		// Two objects in one write: after the crash there are both or none.
		a, b := chain(fmt.Sprintf("a%d", i), i), chain(fmt.Sprintf("b%d", i), i)
		err := commit(context.Background(), s, append(put(a, 0), put(b, 0)...))
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		id, err := s.NextIDs(context.Background(), "vport", 0, 1)
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(i, id)
	}
}

// TestKilledInMidWrite kills a writing process three times; every write that
// was acknowledged is there, whole, and no number is given twice.
func TestKilledInMidWrite(t *testing.T) {
	for round := range 3 {
		dir := t.TempDir()
		last, lastID := killWriter(t, dir, time.Duration(100+150*round)*time.Millisecond)
		s := open(t, etcd.Options{Dir: dir})
		list, _, err := s.List(t.Context(), onpath.KindChain, "")
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, o := range list {
			found[o.Meta().Name] = true
		}
		for i := range last + 1 {
			if !found[fmt.Sprintf("a%d", i)] || !found[fmt.Sprintf("b%d", i)] {
				t.Fatalf("round %d: write %d of %d acknowledged ones is lost", round, i, last+1)
			}
		}
		for i := last + 1; i < last+3; i++ {
			if found[fmt.Sprintf("a%d", i)] != found[fmt.Sprintf("b%d", i)] {
				t.Errorf("round %d: half of write %d is there", round, i)
			}
		}
		if id, err := s.NextIDs(t.Context(), "vport", 0, 1); err != nil || id <= lastID {
			t.Errorf("round %d: number %d after %d, %v", round, id, lastID, err)
		}
		t.Logf("round %d: killed after %d acknowledged writes", round, last+1)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killWriter lets a writer work for a while after its first write, kills it,
// and returns the last write it was told is safe.
func killWriter(t *testing.T, dir string, after time.Duration) (last int, id uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	last = -1
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "error") {
			t.Fatal(lines.Text())
		}
		if last < 0 {
			time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
		if _, err := fmt.Sscan(lines.Text(), &last, &id); err != nil {
			break // the line during which it was killed
		}
	}
	if last < 0 {
		t.Fatal("the writer wrote nothing")
	}
	return last, id
}
