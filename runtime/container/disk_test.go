package container

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// TestFiller: containers that fill a disk together end one after the other, the largest
// first, and none where somebody else does.
func TestFiller(t *testing.T) {
	for _, c := range []struct {
		beyond []onpath.Size
		want   int
	}{
		{nil, -1}, {[]onpath.Size{-500, 0}, -1}, {[]onpath.Size{10, 20, 30}, -1}, {[]onpath.Size{-500, 30, 40, 35}, 2},
		{[]onpath.Size{0, 100}, 1}, {[]onpath.Size{-100, 99}, -1},
	} {
		if got := filler(c.beyond, 100); got != c.want {
			t.Errorf("of %v number %d ends, want %d", c.beyond, got, c.want)
		}
	}
}

// TestDiskFilled: the container that fills the disk is ended, and says why; one that wrote
// as much by its resources.disk, and one that wrote little, go on.
func TestDiskFilled(t *testing.T) {
	opt := machine(t)
	if err := unix.Mount("tmpfs", opt.StateDir, "tmpfs", 0, "size=256m,mode=0711"); err != nil {
		t.Fatalf("cannot mount a small file system: %v", err) // root can
	}
	d := open(t, opt)
	t.Cleanup(func() {
		if err := errors.Join(d.Remove(context.Background()), unix.Unmount(opt.StateDir, unix.MNT_DETACH)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	lay := filepath.Join(t.TempDir(), "layout")
	p, err := layout.Write(lay, empty.Index)
	if err == nil {
		err = p.AppendImage(shellImage(t, "", "head"))
	}
	if err != nil {
		t.Fatal(err)
	}
	run := func(id, script string, disk onpath.Size) onpath.Process {
		c := &onpath.ContainerSpec{Image: lay, Env: onpath.Env{"PATH": defaultPath},
			Command: []string{"sh", "-c", script + "; echo written; sleep 1000"}}
		return startSpec(t, d, id, onpath.FunctionSpec{Container: c, Resources: onpath.Resources{Memory: 512 << 20, Disk: disk}}, "")
	}
	written := func(id string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			var out strings.Builder
			if err := d.Logs(t.Context(), id, onpath.LogView{Tail: -1}, false, &out); err == nil && strings.Contains(out.String(), "written") {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s has not written", id)
			}
		}
	}
	honest := run("honest", "head -c 60000000 /dev/zero > /own", 64<<20)
	little := run("little", "echo x > /own", 0)
	written("honest")
	written("little")
	hostile := run("hostile", "head -c 1000000000 /dev/zero > /full", 0)
	select {
	case <-hostile.Exited():
	case <-time.After(time.Minute):
		t.Fatal("the container that filled the disk goes on")
	}
	if why := hostile.(onpath.Judged).EndedFor(); !strings.Contains(why, "the node's disk is full") {
		t.Errorf("it was ended because %q", why)
	}
	if err := hostile.Stop(t.Context(), 0); err != nil {
		t.Error(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, short := d.diskShort(); !short {
			break
		}
		if time.Now().After(end) {
			t.Fatal("what it wrote is still there")
		}
	}
	for name, p := range map[string]onpath.Process{"honest": honest, "little": little} {
		if p.Pid() == 0 {
			t.Errorf("the %s one was ended: %s", name, p.(onpath.Judged).EndedFor())
		}
	}
	if _, err := os.Stat(d.instanceDir("hostile")); err == nil {
		t.Error("something of it is left")
	}
}
