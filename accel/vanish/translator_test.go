package vanish

import (
	"bytes"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// open loads the program for a test.
func open(t *testing.T) *Translator {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tr, err := Open("")
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// TestObject: the committed object is what bpf/ makes, and both sides agree on its layouts.
func TestObject(t *testing.T) {
	t.Parallel()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]any{"vanish_key": Key{}, "vanish_half": Half{}} {
		var c *btf.Struct
		if err := spec.Types.TypeByName(name, &c); err != nil {
			t.Fatal(err)
		}
		if g := reflect.TypeOf(v); uintptr(c.Size) != g.Size() {
			t.Errorf("struct %s has %d bytes in C, %d in Go", name, c.Size, g.Size())
		}
	}
	if out, err := exec.Command("clang", "--version").Output(); err != nil || !strings.Contains(string(out), "version 14.") {
		t.Skip("needs clang 14, which made the committed object")
	}
	dir := t.TempDir()
	if out, err := exec.Command("make", "-C", "../../bpf", "-B", "RELAY="+dir, dir+"/vanish_bpfel.o").CombinedOutput(); err != nil {
		t.Fatalf("rebuild: %v\n%s", err, out)
	}
	if fresh, err := os.ReadFile(dir + "/vanish_bpfel.o"); err != nil || !bytes.Equal(fresh, object) {
		t.Errorf("the committed object is not what bpf/ makes; run go generate ./accel/vanish (%v)", err)
	}
}
