package ebpf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// clangVersion is the major version that made the committed objects.
const clangVersion = "14"

// TestObjects rebuilds the committed objects and compares.
func TestObjects(t *testing.T) {
	out, err := exec.Command("clang", "--version").Output()
	if err != nil {
		t.Skip("needs clang to rebuild the functions")
	}
	if !strings.Contains(string(out), "version "+clangVersion+".") {
		t.Skipf("needs clang %s, which made the committed objects; here is %s", clangVersion, strings.SplitN(string(out), "\n", 2)[0])
	}
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		t.Skip("needs libbpf's headers to rebuild the functions")
	}
	dir := t.TempDir()
	if out, err := exec.Command("make", "-C", "../../bpf", "-B", "functions", "OBJECTS="+dir).CombinedOutput(); err != nil {
		t.Fatalf("rebuild: %v\n%s", err, out)
	}
	committed, err := filepath.Glob("objects/*.o")
	if err != nil || len(committed) == 0 {
		t.Fatalf("there are no objects: %v", err)
	}
	for _, f := range committed {
		old, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		fresh, err := os.ReadFile(filepath.Join(dir, filepath.Base(f)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(old, fresh) {
			t.Errorf("the committed %s is not what functions/ makes; run go generate ./runtime/ebpf", f)
		}
		if b, ok := builtIn(strings.TrimSuffix(filepath.Base(f), ".o")); !ok || !bytes.Equal(b.code, old) {
			t.Errorf("%s is not built in", f)
		}
	}
}
