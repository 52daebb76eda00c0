package inline

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
	sources, err := filepath.Glob("../../functions/ebpf-*/*.bpf.c")
	if err != nil || len(sources) != len(comeWithOnpath) {
		t.Fatalf("%d functions have sources (%v), and %d come with onpath", len(sources), err, len(comeWithOnpath))
	}
	for _, f := range comeWithOnpath {
		fresh, err := os.ReadFile(filepath.Join(dir, f.Name+".o"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(f.Object, fresh) {
			t.Errorf("the committed object of %s is not what its source makes; run go generate ./functions/...", f.Name)
		}
	}
}
