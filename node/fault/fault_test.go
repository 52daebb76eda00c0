package fault

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// sleeper is a process to be stopped.
func sleeper(t *testing.T) int {
	t.Helper()
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Skip("needs the program sleep")
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c.Process.Pid
}

// stopped reports whether a process is stopped by a signal.
func stopped(pid int) (is, known bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return bytes.Contains(status, []byte("\nState:\tT")), err == nil
}

func becomes(t *testing.T, pid int, want bool) {
	t.Helper()
	for range 500 {
		if is, known := stopped(pid); known && is == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("process %d does not become stopped: %t", pid, want)
}

// TestKeep: what was written down is undone by the keeper if the agent is
// gone, and left alone if it has been undone.
func TestKeep(t *testing.T) {
	pid := sleeper(t)
	d := base.Dir(t.TempDir())
	l := &lease{Fault: onpath.Fault{ID: "stall-1", Kind: onpath.FaultStall, Until: time.Now().Add(300 * time.Millisecond)}}
	l.aim(pid, wiring.Wiring{})
	if len(l.Stopped) != 1 || l.Stopped[0].PID != pid || l.Stopped[0].Start == "" {
		t.Fatalf("aims at %+v", l.Stopped)
	}
	if err := saveLease(d, l); err != nil {
		t.Fatal(err)
	}
	if err := l.begin(onpath.FaultRequest{Kind: onpath.FaultStall}); err != nil {
		t.Fatal(err)
	}
	becomes(t, pid, true)
	if err := Keep(t.Context(), leaseFile(d, l.Fault.ID)); err != nil {
		t.Fatal(err)
	}
	becomes(t, pid, false)
	if _, err := os.Stat(leaseFile(d, l.Fault.ID)); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	if time.Now().Before(l.Fault.Until) {
		t.Error("it ended early")
	}

	l.Fault.Until = time.Now().Add(100 * time.Millisecond)
	if err := saveLease(d, l); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = removeLease(d, l) })
	if err := Keep(t.Context(), leaseFile(d, l.Fault.ID)); err != nil {
		t.Error("one that the agent has ended:", err)
	}
}

// TestSignalsNobodyElse: a process number that has changed hands is left alone.
func TestSignalsNobodyElse(t *testing.T) {
	pid := sleeper(t)
	l := &lease{Fault: onpath.Fault{Kind: onpath.FaultStall}, Stopped: []processID{{pid, "1"}}}
	if err := l.begin(onpath.FaultRequest{Kind: onpath.FaultStall}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if is, _ := stopped(pid); is {
		t.Error("a stranger was stopped")
	}
}

// TestEndLike: of one kind an instance has one fault at a time; a new one takes the place
// of the last, also of one that an agent before has caused.
func TestEndLike(t *testing.T) {
	d := base.Dir(t.TempDir())
	f := New(&base.Part{Dir: d}, nil, nil)
	asked := onpath.FaultRequest{Kind: onpath.FaultStall, Instance: "acme/fw-1"}
	if err := f.endLike(asked); err != nil {
		t.Fatal("before any:", err)
	}
	pid := sleeper(t)
	stall := func(id, instance string) *lease {
		l := &lease{Fault: onpath.Fault{ID: id, Kind: onpath.FaultStall, Instance: instance, Until: time.Now().Add(time.Hour)}}
		l.aim(pid, wiring.Wiring{})
		if err := saveLease(d, l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := stall("stall-1", "acme/fw-1")
	if err := l.begin(asked); err != nil {
		t.Fatal(err)
	}
	becomes(t, pid, true)
	for _, other := range []onpath.FaultRequest{{Kind: onpath.FaultDrop, Instance: "acme/fw-1"}, {Kind: onpath.FaultStall, Instance: "acme/fw-2"}} {
		if err := f.endLike(other); err != nil {
			t.Fatal(err)
		}
	}
	if is, _ := stopped(pid); !is {
		t.Error("a fault of another kind, or elsewhere, ended it")
	}
	if err := f.endLike(asked); err != nil {
		t.Fatal(err)
	}
	becomes(t, pid, false)
	if _, err := os.Stat(leaseFile(d, l.Fault.ID)); !os.IsNotExist(err) {
		t.Errorf("its file is still there: %v", err)
	}
}

// TestToldOfLateEnd: the agent tells of a fault's end also where its keeper ended it, and
// says nothing of one whose place another took.
func TestToldOfLateEnd(t *testing.T) {
	p := &base.Part{Dir: base.Dir(t.TempDir()), Log: slog.New(slog.DiscardHandler), Clock: base.WallClock{}, Events: &base.Events{}}
	f := New(p, nil, nil)
	l := &lease{Fault: onpath.Fault{ID: "drop-1", Kind: onpath.FaultDrop, Instance: "acme/fw-1", Until: time.Now()}}
	if err := saveLease(p.Dir, l); err != nil {
		t.Fatal(err)
	}
	if err := f.endLike(onpath.FaultRequest{Kind: onpath.FaultDrop, Instance: "acme/fw-1"}); err != nil {
		t.Fatal(err)
	}
	f.endInTime(t.Context(), l)
	if len(p.Events.Waiting()) != 0 {
		t.Errorf("of a fault whose place another took it tells %+v", p.Events.Waiting())
	}
	l.Fault.ID = "drop-2" // its file is gone: the keeper was faster
	f.endInTime(t.Context(), l)
	if got := p.Events.Waiting(); len(got) != 1 || got[0].Reason != "FaultEnded" || got[0].Message != "drop is over" {
		t.Errorf("of a fault that the keeper ended it tells %+v, must tell that it is over", got)
	}
}

// TestEndedByTwo: a late agent and its keeper end a loss at the same time; neither fails,
// and the agent tells of the end.
func TestEndedByTwo(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	p := &base.Part{Dir: base.Dir(t.TempDir()), Log: slog.New(slog.DiscardHandler), Clock: base.WallClock{}, Events: &base.Events{}}
	f := New(p, nil, nil)
	ns := filepath.Join(t.TempDir(), "ns")
	if err := netnsrun.Create(ns); err != nil {
		t.Fatal(err)
	}
	defer netnsrun.Remove(ns)
	for range 20 {
		l := &lease{Inside: ns, Fault: onpath.Fault{ID: "drop-1", Kind: onpath.FaultDrop, Until: time.Now().Add(time.Minute),
			Instance: "acme/fw-1", Devices: []string{inside + "lo"}}}
		if err := l.begin(onpath.FaultRequest{Kind: onpath.FaultDrop, Share: 1}); err != nil {
			t.Fatal(err)
		}
		l.Fault.Until = time.Now().Add(-keeperLate)
		if err := saveLease(p.Dir, l); err != nil {
			t.Fatal(err)
		}
		kept := make(chan error)
		go func() { kept <- Keep(t.Context(), leaseFile(p.Dir, l.Fault.ID)) }()
		f.endInTime(t.Context(), l)
		if err := <-kept; err != nil {
			t.Fatal("the keeper:", err)
		}
	}
	if n := len(p.Events.Waiting()); n != 20 {
		t.Errorf("it tells of %d ends, must tell of 20", n)
	}
}
