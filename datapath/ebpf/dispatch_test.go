package ebpf

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/internal/bpffs"
	"github.com/onpath/onpath/internal/bpfobject"
)

// TestDispatcher links many functions, so that callerFor halves.
func TestDispatcher(t *testing.T) {
	t.Parallel()
	b := newBench(t, 0, stateUp)
	o, err := bpfobject.Parse(datapathtest.ExamObject)
	if err != nil {
		t.Fatal(err)
	}
	if err := bpffs.Need(DefaultPinPath); err != nil { // the first test of a machine that has none
		t.Fatal(err)
	}
	dir := filepath.Join(DefaultPinPath, "test-dispatcher")
	t.Cleanup(func() { os.RemoveAll(dir) })
	tables, err := o.OpenTables(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bpfobject.CloseTables(tables) })
	var list []*linked
	for slot := uint32(1); slot < maxFunctions; slot += 5 {
		list = append(list, &linked{object: o, tables: tables, slot: slot})
		for _, name := range []string{dispatcherProgram, fastDispatcherProgram} {
			p, err := buildDispatcher(list, 0, b.c, name)
			if err != nil {
				t.Fatalf("%s, %d functions: %v", name, len(list), err)
			}
			p.Close()
		}
	}
}
