package badinput_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath/internal/testprogram"
)

// TestSocketIsRefusedFirst: a server that cannot listen makes no state, and
// leaves alone what is in its way.
func TestSocketIsRefusedFirst(t *testing.T) {
	bin, dir := testprogram.Path(t), t.TempDir()
	file, used := filepath.Join(dir, "file"), filepath.Join(dir, "used")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", used)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		socket string
		code   int
		want   string
	}{
		{file, 2, "is a file, not a socket"},
		{filepath.Join(dir, "none", "s"), 2, "there is no directory"},
		{filepath.Join(dir, strings.Repeat("x", 108)), 2, "of at most 107"},
		{used, 5, "another server answers"},
	} {
		state := filepath.Join(dir, "state")
		code, _, message := run(t, bin, "server", "--state-dir", state, "--socket", c.socket)
		if code != c.code || !strings.Contains(message, c.want) {
			t.Errorf("%s: exit code %d, %s", c.socket, code, message)
		}
		if _, err := os.Stat(state); err == nil {
			t.Errorf("%s: %s was made", c.socket, state)
		}
	}
	if b, err := os.ReadFile(file); string(b) != "mine" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// TestFirstStartInterrupted ends servers in the middle of their first start, as
// Ctrl-C and kill do; the next start comes up.
func TestFirstStartInterrupted(t *testing.T) {
	bin := testprogram.Path(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		dir := t.TempDir()
		socket := filepath.Join(dir, "state", "s") // its directory comes with the state's
		args := []string{"server", "--state-dir", filepath.Join(dir, "state"), "--socket", socket}
		first := exec.CommandContext(t.Context(), bin, args...)
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the log of the store", func() bool {
			m, _ := filepath.Glob(filepath.Join(dir, "state/store/etcd*/member/wal/*.wal"))
			return len(m) > 0
		})
		if err := first.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := first.Wait(); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "state/store/etcd.new")); signal == syscall.SIGINT && len(left) > 0 {
			t.Errorf("%s: it did not wait for its store to close", signal)
		}
		again, stop := context.WithCancel(t.Context())
		second := exec.CommandContext(again, bin, args...)
		var log bytes.Buffer
		second.Stderr = &log
		second.Cancel = func() error { return second.Process.Signal(syscall.SIGTERM) }
		if err := second.Start(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the second server", func() bool {
			c, err := net.Dial("unix", socket)
			if err != nil {
				return false
			}
			return c.Close() == nil
		})
		stop()
		_ = second.Wait()
		if strings.Contains(log.String(), "level=ERROR") {
			t.Errorf("%s: the second start complains:\n%s", signal, log.String())
		}
	}
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come within 40 s", what)
		}
	}
}

// TestNoSuchDevice: an uplink that was mistyped is refused before anything is made.
func TestNoSuchDevice(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, as onpath up does")
	}
	bin := testprogram.Path(t)
	dir := filepath.Join(t.TempDir(), "state")
	code, out, message := run(t, bin, "up", "--uplink", "nosuch0", "--state-dir", dir, "--socket", dir+".sock")
	if code != 2 || out != "" || !strings.Contains(message, "--uplink nosuch0: this network namespace has no device nosuch0; ") {
		t.Errorf("exit code %d, %q, %s", code, out, message)
	}
	if made, _ := filepath.Glob(dir + "*"); len(made) > 0 {
		t.Errorf("it made %v", made)
	}
}

// TestNothingThere: commands that find nothing say so, and nothing on standard
// output that a program would read.
func TestNothingThere(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, as labs do")
	}
	bin := testprogram.Path(t)
	none := t.TempDir()
	for _, c := range []struct {
		args         []string
		out, message string
	}{
		{[]string{"lab", "status", "--lab-dir", none}, "", "no lab is up"},
		{[]string{"lab", "status", "--lab-dir", none, "-o", "json"}, "[]\n", ""},
		{[]string{"lab", "down", "--all", "--lab-dir", none}, "", "no lab is up"},
		{[]string{"demo", "--down", "--dir", none + "/x"}, "nothing of a demonstration is in " + none + "/x\n", ""},
	} {
		if code, out, message := run(t, bin, c.args...); code != 0 || out != c.out || message != c.message {
			t.Errorf("%v: exit code %d, %q, %q", c.args, code, out, message)
		}
	}
}
