package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

const shapedPair = `
hosts:
  one: {mounts: private, interfaces: {eth0: [10.0.0.1/24]}, commands: [{run: [sleep, "1000"]}]}
  two: {interfaces: {eth0: [10.0.0.2/24]}}
switches: {s: }
links: [{a: one, b: s, rate: 10Mbit, delay: 1ms}, {a: two, b: s}]`

func TestDuplicateIsRefused(t *testing.T) {
	l := up(t, parse(t, shapedPair), Options{})
	_, err := Up(t.Context(), parse(t, shapedPair), Options{Name: l.Name(), StateDir: filepath.Dir(l.Dir())})
	if onpath.CodeOf(err) != onpath.CodeExists || !strings.Contains(err.Error(), "lab down "+l.Name()) {
		t.Errorf("a second lab of the same name: %v", err)
	}
	run(t, l, "one", "ping", "-c1", "-w5", "10.0.0.2")
	list, err := List(filepath.Dir(l.Dir()))
	if err != nil || len(list) != 1 || list[0].Name != l.Name() || list[0].Phase != PhaseUp || list[0].Hosts != 2 {
		t.Errorf("list: %+v, %v", list, err)
	}
	again, err := Open(filepath.Dir(l.Dir()), l.Name())
	if err != nil {
		t.Fatal(err)
	}
	run(t, again, "two", "ping", "-c1", "-w5", "10.0.0.1")
	if err := again.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Dir(l.Dir()), l.Name()); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("after down: %v", err)
	}
}

// TestForeignDirectory: what is not a lab's is neither used nor removed.
func TestForeignDirectory(t *testing.T) {
	needsRoot(t)
	state := t.TempDir()
	precious := filepath.Join(state, "mine", "precious")
	if err := errors.Join(os.Mkdir(filepath.Dir(precious), 0o755), os.WriteFile(precious, []byte("x"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(t.Context(), parse(t, shapedPair), Options{Name: "mine", StateDir: state}); onpath.CodeOf(err) != onpath.CodeExists {
		t.Errorf("up: %v", err)
	}
	if err := os.WriteFile(filepath.Join(state, "mine", "state.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(state, "mine"); onpath.CodeOf(err) != onpath.CodeInternal {
		t.Errorf("open: %v", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

// TestCancelledUp: Ctrl-C at each step leaves nothing.
func TestCancelledUp(t *testing.T) {
	needsRoot(t)
	for at := 1; at <= 6; at++ {
		state := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Up(ctx, parse(t, shapedPair), Options{Name: uniqueName(), StateDir: state, Progress: func(_ string, n, _ int) {
			if n == at {
				cancel()
			}
		}})
		cancel()
		if at < 6 && (err == nil || !strings.Contains(err.Error(), "is not up: interrupted at step ")) {
			t.Errorf("cancelled at step %d it says %v", at, err)
		}
		if at < 6 && !errors.Is(err, context.Canceled) {
			t.Errorf("step %d: %v", at, err)
		}
		nothingLeft(t, state)
	}
}

// nothingLeft fails if the state directory holds anything or anything is
// mounted in it.
func nothingLeft(t *testing.T, state string) {
	t.Helper()
	entries, err := os.ReadDir(state)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left", e.Name())
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), state) {
		t.Errorf("a mount in %s is left", state)
	}
}

const crashVariable = "ONPATH_LAB_TEST_CRASH"

// crashOrder is what a child of TestCrash does before it dies.
type crashOrder struct {
	Name, State string
	Step        int
	Down        bool
}

// TestCrash: a process that is killed in the midst of Up leaves what the next
// Up, or Down, removes. One that is killed later leaves a lab that List tells as left.
func TestCrash(t *testing.T) {
	needsRoot(t)
	if text := os.Getenv(crashVariable); text != "" {
		crash(t, text)
		return
	}
	const done = 8 // no step of Up
	for _, step := range []int{2, 3, 4, 5, 6, done} {
		phase := "starting (interrupted)"
		if step == done {
			phase = "up (left by a program that has ended)"
		}
		order := crashOrder{Name: uniqueName(), State: t.TempDir(), Step: step}
		text, _ := json.Marshal(order)
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
		cmd.Env = append(os.Environ(), crashVariable+"="+string(text))
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("step %d: the child ended with %v: %s", step, err, out)
		}
		if list, err := List(order.State); err != nil || len(list) != 1 || list[0].Phase != phase || !list[0].Left {
			t.Errorf("step %d: list: %+v, %v", step, list, err)
		}
		if step%2 == 0 {
			l, err := Open(order.State, order.Name)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Down(t.Context()); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
		} else {
			l := up(t, parse(t, shapedPair), Options{Name: order.Name, StateDir: order.State})
			run(t, l, "one", "ping", "-c1", "-w5", "10.0.0.2")
			if err := l.Down(t.Context()); err != nil {
				t.Errorf("step %d: %v", step, err)
			}
		}
		os.Remove(filepath.Join(order.State, order.Name+".lock")) // of the child; empty
		nothingLeft(t, order.State)
	}
}

// crash kills the process at the order's step of Up.
func crash(t *testing.T, text string) {
	var order crashOrder
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		t.Fatal(err)
	}
	die := func() {
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		time.Sleep(time.Minute)
	}
	_, err := Up(t.Context(), parse(t, shapedPair), Options{Name: order.Name, StateDir: order.State, Bound: true, Progress: func(_ string, n, _ int) {
		if n == order.Step {
			die()
		}
	}})
	if err == nil {
		die()
	}
	t.Fatal("still alive: ", err)
}

// TestDownEndsStrangers: what somebody started in a host ends with the lab,
// also if it ignores SIGTERM; what runs elsewhere does not.
func TestDownEndsStrangers(t *testing.T) {
	l := up(t, parse(t, shapedPair), Options{})
	outside := exec.Command("sleep", "1000")
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = outside.Process.Kill(); _ = outside.Wait() }()
	var inside []*exec.Cmd
	for _, c := range [][]string{{"one", "sleep", "1000"}, {"two", "sh", "-c", "trap '' TERM; while true; do sleep 0.05; done"}} {
		cmd := l.Command(c[0], c[1], c[2:]...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		inside = append(inside, cmd)
	}
	for i, host := range []string{"one", "two"} {
		want, _ := identifyFile(l.NetNS(host))
		eventually(t, func() error {
			if at, _ := identifyFile(fmt.Sprintf("/proc/%d/ns/net", inside[i].Process.Pid)); at != want {
				return fmt.Errorf("process %d does not enter %s", inside[i].Process.Pid, host)
			}
			return nil
		})
	}
	ended := make(chan error, len(inside))
	for _, cmd := range inside {
		go func() { ended <- cmd.Wait() }()
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range inside {
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatal("a process in a host outlived the lab")
		}
	}
	if err := outside.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error("a process outside is gone:", err)
	}
	nothingLeft(t, filepath.Dir(l.Dir()))
}

// TestNoSuchProgram: a lab whose command cannot be run is not up, and says which host's.
func TestNoSuchProgram(t *testing.T) {
	needsRoot(t)
	text := filepath.Join(t.TempDir(), "text") // no program, though it is there
	if err := os.WriteFile(text, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for program, why := range map[string]string{"nosuch": "executable file not found", text: "permission denied"} {
		state := t.TempDir()
		_, err := Up(t.Context(), parse(t, fmt.Sprintf(`
hosts:
  one: {interfaces: {eth0: [10.0.0.1/24]}, commands: [{name: first, run: [sleep, "1000"]}]}
  two: {interfaces: {eth0: [10.0.0.2/24]}, commands: [{name: second, run: [%q, "-x"]}]}
links: [{a: one, b: two}]`, program)), Options{Name: uniqueName(), StateDir: state})
		if onpath.CodeOf(err) != onpath.CodeInvalid {
			t.Fatalf("%s: %v", program, err)
		}
		for _, want := range []string{"host two: command second: ", program, why, "install it"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", program, err, want)
			}
		}
		nothingLeft(t, state)
	}
}

// TestUnbind: a lab that its program let go is not told as left by it.
func TestUnbind(t *testing.T) {
	dir := directoryOf(t.TempDir(), "kept")
	if err := os.MkdirAll(string(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	l := &Lab{dir: dir, state: &state{Name: "kept", Phase: PhaseUp, Bound: true, Owner: identity{PID: 1 << 30}, Topology: &Topology{}}}
	if !l.left() {
		t.Fatal("a lab whose program has ended is not told as left")
	}
	if err := l.Unbind(); err != nil {
		t.Fatal(err)
	}
	if s, err := dir.load(); err != nil || s.phase() != PhaseUp || s.left() {
		t.Errorf("phase %q, %v", s.phase(), err)
	}
}
