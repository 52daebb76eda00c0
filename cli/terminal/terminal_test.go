package terminal_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath/cli/terminal"
)

// open makes a pseudo terminal and returns its program's side.
func open(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo terminals: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals: %v", err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestRawAndSize(t *testing.T) {
	f := open(t)
	if !terminal.Is(f) {
		t.Fatal("a terminal is none")
	}
	before, _ := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	restore, err := terminal.Raw(f)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if raw.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) != 0 {
		t.Error("not raw")
	}
	restore()
	if after, _ := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); *after != *before {
		t.Errorf("not restored: %+v, was %+v", after, before)
	}
	if c, r := terminal.Size(f); c != 80 || r != 24 {
		t.Errorf("unknown size: %d by %d", c, r)
	}
	if err := unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 132}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	terminal.Resized(ctx, f, func(c, r int) {
		if c != 132 || r != 50 {
			t.Errorf("size %d by %d", c, r)
		}
		cancel()
	})
}

func TestNoTerminal(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if terminal.Is(f) {
		t.Error("/dev/null is a terminal")
	}
	if _, err := terminal.Raw(f); err == nil {
		t.Error("/dev/null became raw")
	}
}
