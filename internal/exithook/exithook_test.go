package exithook

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func watcher(t *testing.T) *Watcher {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to load eBPF programs")
	}
	if ns, err := os.Readlink("/proc/self/ns/pid"); err != nil || !strings.Contains(ns, "[4026531836]") {
		t.Skip("needs the machine's first PID namespace")
	}
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.release()
		<-w.done
	})
	return w
}

// A killed program is told of, one that runs is not, nor one whose watch ended.
func TestTells(t *testing.T) {
	w := watcher(t)
	var cmds []*exec.Cmd
	for range 3 {
		c := exec.Command("sleep", "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		cmds = append(cmds, c)
	}
	killed, stop := w.Watch(cmds[0].Process.Pid)
	defer stop()
	lives, stop := w.Watch(cmds[1].Process.Pid)
	defer stop()
	ignored, stop := w.Watch(cmds[2].Process.Pid)
	stop()
	for _, i := range []int{0, 2} {
		if err := cmds[i].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmds[i].Wait()
	}
	select {
	case <-killed:
	case <-time.After(time.Minute):
		t.Error("the end is not told")
	}
	select {
	case <-lives:
		t.Error("tells of the end of a program that runs")
	case <-ignored:
		t.Error("tells of the end of a program that is not watched")
	case <-time.After(100 * time.Millisecond):
	}
}

// The end of one thread, the first, is not the end of the program.
func TestFirstThread(t *testing.T) {
	w := watcher(t)
	c := exec.Command("/proc/self/exe", "-test.run=^$")
	c.Env = append(os.Environ(), headless+"=1")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	ended, stop := w.Watch(c.Process.Pid)
	defer stop()
	select {
	case <-ended:
		t.Error("takes the end of the first thread for the program's")
	case <-time.After(500 * time.Millisecond):
	}
	var status []byte
	for end := time.Now().Add(time.Minute); !strings.Contains(string(status), ") Z ") && err == nil && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		status, err = os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", c.Process.Pid, c.Process.Pid))
	}
	select {
	case <-ended:
		t.Error("takes the end of the first thread for the program's")
	case <-time.After(100 * time.Millisecond):
	}
	if err != nil || !strings.Contains(string(status), ") Z ") {
		t.Errorf("the first thread has not ended, so this shows nothing: %s %v", status, err)
	}
}

// headless is set for a test binary whose first thread is to end before the others.
const headless = "ENDINGS_TEST_HEADLESS"

func init() {
	if os.Getenv(headless) != "" {
		runtime.LockOSThread() // in init: main stays on the first thread
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(headless) != "" {
		go func() { time.Sleep(time.Hour) }()
		fmt.Println("ready")
		time.Sleep(300 * time.Millisecond)
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0) // of this thread alone
	}
	os.Exit(m.Run())
}

func TestNil(t *testing.T) {
	var w *Watcher
	c, stop := w.Watch(1)
	stop()
	if c != nil {
		t.Error("a nil watcher gives a channel")
	}
}
