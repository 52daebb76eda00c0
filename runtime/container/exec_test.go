package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestFullDisk: on a full state directory commands cannot be run inside, which is
// the runtime's fault and not the command's; the instance runs on.
func TestFullDisk(t *testing.T) {
	opt := machine(t)
	if err := unix.Mount("tmpfs", opt.StateDir, "tmpfs", 0, "size=64m,mode=0700"); err != nil {
		t.Fatalf("cannot mount a small file system: %v", err) // root can
	}
	d := open(t, opt)
	t.Cleanup(func() {
		if err := d.Remove(context.Background()); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if err := unix.Unmount(opt.StateDir, unix.MNT_DETACH); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	p := startSpec(t, d, "full", hostSpec([]string{"/bin/sleep", "1000"}), "")
	run := func(command string) (int, error) {
		return d.Exec(t.Context(), "full", onpath.ExecSpec{Command: []string{command}})
	}
	if code, err := run("/bin/true"); code != 0 || err != nil {
		t.Fatalf("true gives %d, %v", code, err)
	}
	if _, err := run("/bin/nosuch"); onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Errorf("a missing program is the caller's mistake: %v", err)
	}
	filler, err := os.Create(filepath.Join(opt.StateDir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(filler, zeros{}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("cannot fill the disk: %v", err)
	}
	if err := filler.Close(); err != nil {
		t.Fatal(err)
	}
	if code, err := run("/bin/true"); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("true on a full disk gives %d, %v (%s); must be unavailable", code, err, onpath.CodeOf(err))
	}
	if p.Pid() == 0 {
		t.Error("the instance has ended")
	}
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	if code, err := run("/bin/true"); code != 0 || err != nil {
		t.Errorf("with space again, true gives %d, %v", code, err)
	}
}

// TestStartError: why a program does not start is said in plain words.
func TestStartError(t *testing.T) {
	const runc = "runc create failed: unable to start container process: "
	for text, want := range map[string]string{
		runc + `exec: "nosuchprog": executable file not found in $PATH: unknown`:   "cannot start: there is no program nosuchprog in its file system",
		runc + `exec: "/bin/no": stat /bin/no: no such file or directory: unknown`: "cannot start: there is no program /bin/no in its file system",
		runc + `exec: "/etc/passwd": permission denied: unknown`:                   `cannot start: exec: "/etc/passwd": permission denied`,
	} {
		if err := startError(errors.New(text)); err.Error() != want || onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestCommandError: which failures are the runtime's own.
func TestCommandError(t *testing.T) {
	const runc = "OCI runtime exec failed: exec failed: unable to start container process: "
	for text, want := range map[string]onpath.Code{
		"OCI runtime exec failed: runc did not terminate successfully: exit status 255: unknown":     onpath.CodeUnavailable,
		runc + `exec: "nft": executable file not found in $PATH: unknown`:                            onpath.CodeInvalid,
		runc + "exec /usr/sbin/nft: exec format error: unknown":                                      onpath.CodeInvalid,
		runc + "procReady not received: unknown":                                                     onpath.CodeInvalid,
		runc + `exec: "curl": executable file not found in $PATH: unknown`:                           onpath.CodeUnavailable, // of an earlier command
		runc + "open /run/x/exec.fifo: no space left on device: unknown":                             onpath.CodeUnavailable,
		"failed to start io pipe copy: unable to copy pipes: containerd-shim: opening w/o fifo: EOF": onpath.CodeUnavailable,
	} {
		if err := commandError("nft", t.TempDir(), errors.New(text)); onpath.CodeOf(err) != want {
			t.Errorf("%s: %v is %s, must be %s", text, err, onpath.CodeOf(err), want)
		}
	}
}

// zeros never end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestPullReason: an image that cannot be fetched is told by what is in the way.
func TestPullReason(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", unix.ECONNREFUSED)}
	unknown := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "nix.example", IsNotFound: true}}
	silent := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "i/o timeout", Name: "nix.example", IsTimeout: true}}
	for err, want := range map[error]string{
		refused: "nix.example:5000 cannot be reached: connection refused",
		unknown: "there is no host nix.example",
		silent:  "no name server tells the address of nix.example",
	} {
		asked := &url.Error{Op: "Head", URL: "https://nix.example:5000/v2/x/manifests/1", Err: err}
		if got := pullReason(fmt.Errorf("failed to resolve reference: failed to do request: %w", asked)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := pullReason(errors.New("unexpected status 401")); got != "unexpected status 401" {
		t.Error(got)
	}
}
