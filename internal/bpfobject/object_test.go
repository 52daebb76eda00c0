package bpfobject

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

//go:generate go test . -run ^TestObjects$ -update

var update = flag.Bool("update", false, "write the objects instead of comparing them")

// clangVersion is the major version that made the committed objects.
const clangVersion = "14"

// objectOf is where what a hostile function was compiled to lies.
func objectOf(name string) string {
	return filepath.Join("testdata", "hostile", strings.ReplaceAll(name, " ", "-")+".o")
}

// TestObjects compiles the hostile functions again and compares.
func TestObjects(t *testing.T) {
	if lacking := lacks(); lacking != "" && *update {
		t.Fatal(lacking)
	} else if lacking != "" {
		t.Skip(lacking)
	}
	var files []string
	for _, c := range hostile {
		file := objectOf(c.name)
		files = append(files, file)
		fresh, err := compile(t.TempDir(), c.source)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if *update {
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, fresh, 0o644)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if committed, err := os.ReadFile(file); err != nil || !bytes.Equal(fresh, committed) {
			t.Errorf("the committed %s is not what its source gives (%v); run go generate ./internal/bpfobject", file, err)
		}
	}
	there, err := filepath.Glob(objectOf("*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range there {
		if !slices.Contains(files, file) {
			t.Errorf("%s has no source; delete it", file)
		}
	}
}

// lacks says what this machine has not to compile functions as the committed ones were.
func lacks() string {
	out, err := exec.Command("clang", "--version").Output()
	if err != nil {
		return "needs clang to compile functions"
	}
	if !strings.Contains(string(out), "version "+clangVersion+".") {
		return "needs clang " + clangVersion + ", which made the committed objects; here is " + strings.SplitN(string(out), "\n", 2)[0]
	}
	if _, err := exec.LookPath("llvm-strip"); err != nil {
		return "needs clang's llvm-strip to compile functions"
	}
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		return "needs libbpf's headers to compile functions"
	}
	return ""
}

// compile makes an object of a function's source. It is the same wherever this folder
// lies: the compiler reads its standard input, and notes this folder as ".".
func compile(dir, source string) ([]byte, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	out := filepath.Join(dir, "f.o")
	args := []string{"-O2", "-g", "-target", "bpf", "-mcpu=v3", "-fdebug-prefix-map=" + here + "=.", "-I../../sdk"}
	multiarch, err := filepath.Glob("/usr/include/*-linux-gnu")
	if err != nil {
		return nil, err
	}
	for _, m := range multiarch {
		args = append(args, "-I"+m)
	}
	cc := exec.Command("clang", append(args, "-x", "c", "-c", "-", "-o", out)...)
	cc.Stdin = strings.NewReader(source)
	if b, err := cc.CombinedOutput(); err != nil {
		return nil, errors.Join(err, errors.New(string(b)))
	}
	// What remains are the types, which onpath reads; the rest names the compiler's build.
	if b, err := exec.Command("llvm-strip", "-g", out).CombinedOutput(); err != nil {
		return nil, errors.Join(err, errors.New(string(b)))
	}
	return os.ReadFile(out)
}
