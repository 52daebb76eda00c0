package container

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestBegin: a program begins before containerd knows of it, and a start that an agent left
// half done is finished.
func TestBegin(t *testing.T) {
	d := open(t, machine(t))
	defer d.Close()
	create := func(id string) *created {
		c, err := d.Create(t.Context(), onpath.RunSpec{ID: id, Spec: hostSpec(sleep), Awaited: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(d.startPipe(id)); err != nil {
			t.Fatalf("runc's init waits elsewhere: %v", err)
		}
		return c.(*created)
	}
	c := create("begins")
	before, began := executable(c.proc.Pid()), time.Now()
	p, err := c.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	program := time.Since(began)
	for until := time.Now().Add(time.Minute); executable(p.Pid()) == before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the program does not begin")
		}
	}
	if got := inside(t, d, "begins", "echo here"); got != "here" {
		t.Error(got)
	}
	t.Logf("the program began after %s", program)
	quota := func() string { return cgroupFile(t, "begins", "cpu.cfs_quota_us", "cpu.max") }
	if got := quota(); !strings.HasPrefix(got, "500000") {
		t.Errorf("while packets wait its CPU is bounded to %s, must be to half a second in each", got)
	}
	if err := p.Resize(t.Context(), hostSpec(sleep).Resources); err != nil {
		t.Error(err)
	}
	if got := quota(); got != "50000" && got != "50000 100000" {
		t.Errorf("after resizing its CPU is bounded to %s", got)
	}
	if err := p.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}

	c = create("left") // by an agent that ends once init has written, before runc reads
	defer func() { _ = c.Discard(context.Background()) }()
	pipe, err := unix.Open(d.startPipe("left"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil || !readable(pipe, 10*time.Second) {
		t.Fatal("init writes nothing", err)
	}
	unix.Close(pipe)
	started := make(chan error, 1)
	go func() { started <- c.task.Start(d.scope(context.Background())) }()
	for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		d.finishBegin("left")
		select {
		case err := <-started:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
		if time.Now().After(until) {
			t.Fatal("containerd does not start it")
		}
	}
}
