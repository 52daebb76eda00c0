// Package testprogram gives tests the program as people run it: the one that the
// test run was given by $ONPATH_BIN, or one built now.
package testprogram

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// source is the program's package.
const source = "github.com/onpath/onpath/cmd/onpath"

// Path is the program, for the length of a test.
func Path(t testing.TB) string {
	t.Helper()
	if bin, ok := given(); ok {
		return bin
	}
	bin := filepath.Join(t.TempDir(), "onpath")
	if err := Build(t.Context(), bin, ""); err != nil {
		t.Fatal(err)
	}
	return bin
}

// Find is Path for a TestMain; remove takes away what was built.
func Find(ctx context.Context) (bin string, remove func(), err error) {
	if bin, ok := given(); ok {
		return bin, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "onpath-bin-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	bin = filepath.Join(dir, "onpath")
	if err := Build(ctx, bin, ""); err != nil {
		remove()
		return "", nil, err
	}
	return bin, remove, nil
}

func given() (bin string, ok bool) {
	bin = os.Getenv("ONPATH_BIN")
	_, err := os.Stat(bin)
	return bin, err == nil
}

// Build builds the program into the file bin; a version other than "" is what it
// says it is. Without Go the error is exec.ErrNotFound.
func Build(ctx context.Context, bin, version string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-X main.version="+version, "-o", bin, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return nil
}
