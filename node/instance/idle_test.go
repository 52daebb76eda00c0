package instance

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

func TestInformed(t *testing.T) {
	idle := onpath.Idle{UDP: onpath.Duration(90*time.Second + time.Millisecond)}.OrDefault()
	s := onpath.FunctionSpec{Container: &onpath.ContainerSpec{Env: onpath.Env{"ONPATH_IDLE_ICMP": "7"}}}
	got := informed(s, idle).Container
	for name, want := range map[string]string{
		"ONPATH_IDLE_TCP": "7440", "ONPATH_IDLE_TCP_TRANSITORY": "240", "ONPATH_IDLE_TCP_CLOSED": "120",
		"ONPATH_IDLE_UDP": "91", "ONPATH_IDLE_ICMP": "7", "ONPATH_IDLE_OTHER": "600",
	} {
		if got.Env[name] != want {
			t.Errorf("%s is %q, must be %q", name, got.Env[name], want)
		}
	}
	var file struct{ Idle map[string]int64 }
	if err := json.Unmarshal([]byte(got.Files[idleFile].Content), &file); err != nil || file.Idle["udp"] != 91 || len(file.Idle) != 6 {
		t.Errorf("%s tells %v (%v)", idleFile, file.Idle, err)
	}
	if len(s.Container.Env) != 1 || s.Container.Files != nil {
		t.Error("the plan was changed")
	}
	if other := informed(onpath.FunctionSpec{}, idle); other.Container != nil {
		t.Error("what is no container got one")
	}
}

// TestInform: the file follows changes, and links that a container puts in its
// way lead nowhere else.
func TestInform(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to give a process another root directory")
	}
	root, outside := t.TempDir(), t.TempDir()
	cmd := startIn(t, root, 0)
	write := func() error {
		return inform(cmd.Process.Pid, ownNetNS, onpath.Idle{UDP: onpath.Duration(time.Hour)}.OrDefault())
	}
	if err := write(); err == nil {
		t.Error("a container without the folder was told nothing, and nobody said so")
	}
	if err := os.MkdirAll(filepath.Join(root, "run/onpath"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := write(); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(root, idleFile))
	if err != nil || string(data) != idleContent(onpath.Idle{UDP: onpath.Duration(time.Hour)}.OrDefault()) {
		t.Errorf("the file holds %q (%v)", data, err)
	}
	if err := os.RemoveAll(filepath.Join(root, "run/onpath")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "run/onpath")); err != nil {
		t.Fatal(err)
	}
	if err := write(); err == nil {
		t.Error("a link out of the container was followed")
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("outside the container lies %v", left)
	}
}

// TestInformNobodyElse: nothing is written to the machine itself, nor to a process
// that is not the container's.
func TestInformNobodyElse(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to give a process another root directory")
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "run/onpath"), 0o755); err != nil {
		t.Fatal(err)
	}
	ended := startIn(t, root, 0)
	if err := ended.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = ended.Wait()
	before, _ := os.ReadFile(idleFile)
	idle := onpath.Idle{UDP: onpath.Duration(77 * time.Minute)}.OrDefault()
	for what, pid := range map[string]int{
		"a process with the machine's root":      startIn(t, "/", 0).Process.Pid,
		"a process of another network namespace": startIn(t, root, unix.CLONE_NEWNET).Process.Pid,
		"a process that has ended":               ended.Process.Pid,
	} {
		if err := inform(pid, ownNetNS, idle); err == nil {
			t.Errorf("%s was told the container's idle times", what)
		}
	}
	if after, _ := os.ReadFile(idleFile); string(after) != string(before) {
		t.Errorf("%s of the machine became %q", idleFile, after)
	}
	if left, _ := os.ReadDir(filepath.Join(root, "run/onpath")); len(left) > 0 {
		t.Errorf("a stranger's folder holds %v", left)
	}
}

// ownNetNS is the network namespace of this program and those that it starts.
const ownNetNS = "/proc/self/ns/net"

// startIn starts a process with another root directory, in new namespaces, that
// lives as long as the test.
func startIn(t *testing.T, root string, namespaces uintptr) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSleepInChroot$")
	cmd.Env = append(os.Environ(), "ONPATH_TEST_CHROOT="+root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// TestSleepInChroot is the process that startIn starts.
func TestSleepInChroot(t *testing.T) {
	root := os.Getenv("ONPATH_TEST_CHROOT")
	if root == "" {
		return
	}
	sleepIn(root)
}

func sleepIn(root string) {
	if err := unix.Chroot(root); err != nil {
		os.Exit(1)
	}
	os.Stdout.Write([]byte{'.'})
	os.Stdin.Read(make([]byte, 1)) // ends with the test
	os.Exit(0)
}
