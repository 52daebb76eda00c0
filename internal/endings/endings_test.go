package endings

import (
	"os"
	"os/exec"
	"strings"
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
			t.Skipf("needs the program sleep: %v", err)
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
	case <-time.After(5 * time.Second):
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
	const script = `
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
print('ready', flush=True)
time.sleep(0.3)
ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone
`
	c := exec.Command("python3", "-c", script)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Skipf("needs the program python3: %v", err)
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
	case <-time.After(time.Second):
	}
}

func TestNil(t *testing.T) {
	var w *Watcher
	c, stop := w.Watch(1)
	stop()
	if c != nil {
		t.Error("a nil watcher gives a channel")
	}
}
