package ebpf

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/datapathtest"
	"github.com/onpath/onpath/internal/inline"
)

// TestDispatcher links many functions, so that callerFor halves.
func TestDispatcher(t *testing.T) {
	b := newBench(t, 0, stateUp)
	o, err := inline.Parse(datapathtest.ExamObject)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(DefaultPinPath, "test-dispatcher")
	t.Cleanup(func() { os.RemoveAll(dir) })
	tables, err := o.OpenTables(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inline.CloseTables(tables) })
	set := map[onpath.VportID]*linked{}
	for place := uint32(1); place < maxPlaces; place += 5 {
		set[onpath.VportID(place)] = &linked{object: o, tables: tables, place: place}
		for _, name := range []string{dispatcherProgram, fastDispatcherProgram} {
			p, err := buildDispatcher(set, b.c, name)
			if err != nil {
				t.Fatalf("%s, %d functions: %v", name, len(set), err)
			}
			p.Close()
		}
	}
}
