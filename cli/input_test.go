package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestInputThatNeverComes: the first signal ends a command that waits for its
// input.
func TestInputThatNeverComes(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"apply", "-f", "-"}, {"apply", "-f", fifo}, {"delete", "-f", "-"}, {"delete", "-f", fifo}, {"lab", "up", fifo}} {
		in, silent := io.Pipe()
		root := newRoot()
		root.SetArgs(args)
		root.SetIn(in)
		if err := root.ExecuteContext(ended); exitCode(err) != exitInterrupted {
			t.Errorf("%v: exit code %d: %v", args, exitCode(err), err)
		}
		silent.Close()
	}
	f, err := os.OpenFile(fifo, os.O_RDWR, 0) // lets go of who still opens it
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
