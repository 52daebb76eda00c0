package bench

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
		t.Skip("needs clang to rebuild the programs")
	}
	if !strings.Contains(string(out), "version "+clangVersion+".") {
		t.Skipf("needs clang %s, which made the committed objects; here is %s", clangVersion, strings.SplitN(string(out), "\n", 2)[0])
	}
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		t.Skip("needs libbpf's headers to rebuild the programs")
	}
	dir := t.TempDir()
	if out, err := exec.Command("make", "-C", "bpf", "-B", "OUT="+dir).CombinedOutput(); err != nil {
		t.Fatalf("rebuild: %v\n%s", err, out)
	}
	for _, name := range []string{"limits_bpfel.o", "count_bpfel.o", "traffic/traffic_bpfel.o"} {
		fresh, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		committed, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(fresh, committed) {
			t.Errorf("the committed %s is not what bench/bpf makes; run go generate ./bench", name)
		}
	}
}
