// Package funcbuild compiles the source of a packet function for its two targets, with
// the distribution's clang and lld and onpath's own headers.
package funcbuild

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/onpath/onpath/sdk"
)

// Target is what a function is compiled to.
type Target string

// The targets.
const (
	ToEBPF Target = "ebpf"
	ToWasm Target = "wasm"
)

// Suffix is that of the target's files.
func (t Target) Suffix() string {
	if t == ToEBPF {
		return ".o"
	}
	return ".wasm"
}

// ErrLacking means that a compiler is not installed.
var ErrLacking = errors.New("clang is not installed")

var (
	flags = map[Target][]string{
		ToEBPF: {"-g", "-target", "bpf", "-mcpu=v3", "-c", "-Wfatal-errors"},
		ToWasm: {
			"--target=wasm32", "-nostdlib", "-fvisibility=hidden", "-mbulk-memory", "-mno-sign-ext",
			"-Wl,--no-entry", "-Wl,--strip-all",
		},
	}
	// systemHeaders are where Debian keeps the kernel's headers of an architecture.
	systemHeaders = "/usr/include/*-linux-gnu"
)

// Compile compiles the C file for a target and gives what came of it. What the compiler
// says is the error.
func Compile(ctx context.Context, source string, t Target) ([]byte, error) {
	clang, err := exec.LookPath("clang")
	if err != nil {
		return nil, fmt.Errorf("%w: apt-get install clang lld libbpf-dev", ErrLacking)
	}
	dir, err := os.MkdirTemp("", "onpath-build-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, text := range sdk.Headers() {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	out := filepath.Join(dir, "out")
	args := append([]string{"-O2", "-Wall", "-Werror", "-Wno-unused-function", "-fno-color-diagnostics", "-I" + dir}, flags[t]...)
	if t == ToEBPF {
		found, _ := filepath.Glob(systemHeaders)
		for _, h := range found {
			args = append(args, "-I"+h)
		}
	}
	// The same wherever the source lies: debugging information names no folder.
	abs, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	args = append(args, "-fdebug-prefix-map="+filepath.Dir(abs)+"=.", "-fdebug-prefix-map="+dir+"=sdk", "-o", out, filepath.Base(abs))
	cmd := exec.CommandContext(ctx, clang, args...)
	cmd.Dir = filepath.Dir(abs)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(said.String())
		if text == "" {
			text = err.Error()
		}
		if first := errorLine.FindString(text); t == ToEBPF && first != "" {
			text = first // what macros it comes from says nothing about the function
		}
		return nil, fmt.Errorf("compile %s for %s:\n%s", source, t, text)
	}
	return os.ReadFile(out)
}

var errorLine = regexp.MustCompile(`(?m)^.*: (?:fatal )?error: .*$`)

// Once is what compiling for several targets said, without errors that say again what the
// first says: the source itself is wrong.
func Once(errs []error) []error {
	if len(errs) == 0 {
		return nil
	}
	line := func(err error) string {
		return strings.Replace(errorLine.FindString(err.Error()), ": fatal error: ", ": error: ", 1)
	}
	first := line(errs[0])
	return append(errs[:1:1], slices.DeleteFunc(slices.Clone(errs[1:]), func(err error) bool {
		return first != "" && line(err) == first
	})...)
}

var sourceName = regexp.MustCompile(`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)(\.bpf)?\.c$`)

// Source is the C file of a function's folder, and the function's name by it.
func Source(dir string) (file, name string, err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("%s: there is no such file or folder; correct the name", dir)
	}
	if m := sourceName.FindStringSubmatch(filepath.Base(dir)); m != nil {
		return dir, m[1], nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", "", err
	}
	for _, e := range entries {
		m := sourceName.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if file != "" {
			return "", "", fmt.Errorf("%s has %s and %s; a function is one C file: name it", dir, filepath.Base(file), e.Name())
		}
		file, name = filepath.Join(dir, e.Name()), m[1]
	}
	if file == "" {
		return "", "", fmt.Errorf("%s has no C file whose name is a function's, such as mine.c", dir)
	}
	return file, name, nil
}
