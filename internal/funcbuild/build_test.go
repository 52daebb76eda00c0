package funcbuild_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath/internal/funcbuild"
)

//go:generate go test . -run ^TestModules$ -update

var update = flag.Bool("update", false, "write the modules instead of comparing them")

// committed are the sources whose modules lie beside them.
var committed = []string{"../../examples/module/*.c", "../../examples/trust/*.c", "../../functions/active-cdn/*.c", "../../functions/netmonitor/*.c", "../../functions/sip-keepalive/*.c", "../../bench/modules/*.c"}

// asObjects are those that are committed for ebpf too.
var asObjects = []string{"../../functions/netmonitor/netmonitor.c"}

// clangVersion is the major version that made the committed modules.
const clangVersion = "14"

// TestModules compiles the modules that are committed again and compares.
func TestModules(t *testing.T) {
	out, err := exec.Command("clang", "--version").Output()
	if err != nil || !strings.Contains(string(out), "version "+clangVersion+".") {
		t.Skipf("needs clang %s, which made the committed modules; here is %s", clangVersion, strings.SplitN(string(out), "\n", 2)[0])
	}
	sources := 0
	for _, pattern := range committed {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, source := range files {
			sources++
			compare(t, source, funcbuild.ToWasm)
			if slices.Contains(asObjects, source) {
				compare(t, source, funcbuild.ToEBPF)
			}
		}
	}
	if sources == 0 {
		t.Error("no source was found")
	}
}

func compare(t *testing.T, source string, target funcbuild.Target) {
	t.Helper()
	fresh, err := funcbuild.Compile(t.Context(), source, target)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	file := strings.TrimSuffix(source, ".c") + target.Suffix()
	if *update {
		if err := os.WriteFile(file, fresh, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have, err := os.ReadFile(file); err != nil || !bytes.Equal(have, fresh) {
		t.Errorf("the committed %s is not what its source gives (%v); run go generate ./internal/funcbuild", file, err)
	}
}

// TestRefused: what the compiler says is the error.
func TestRefused(t *testing.T) {
	source := filepath.Join(t.TempDir(), "bad.c")
	if err := os.WriteFile(source, []byte("int x = y;\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := funcbuild.Compile(context.Background(), source, funcbuild.ToWasm)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err == nil || !strings.Contains(err.Error(), "bad.c:1:9: error") {
		t.Errorf("%v", err)
	}
}
