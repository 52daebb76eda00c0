package node_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/runtime/container"
)

// A real container: it lives in the instance's namespace, is started again when
// it is killed, outlives its agent, and leaves nothing.
func TestRealContainer(t *testing.T) {
	b := newFixture(t)
	for _, program := range []string{"containerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	driver := openDriver(t, b)
	b.edit = func(o *node.Options) {
		o.Runtimes = map[onpath.FunctionKind]onpath.Runtime{onpath.ContainerFunction: driver}
		o.StopGrace = 100 * time.Millisecond
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, driver.Remove(ctx)) // closes it too
	})
	in := routed("web", 16, "10.9.0.5/24")
	in.Spec.Container.Command = []string{"/bin/sh", "-c", "exec sleep 1000"}
	in.Spec.Resources = onpath.Resources{CPU: 200, Memory: 64 << 20}
	in.Spec.Health = onpath.Health{Exec: []string{"/bin/true"}, Every: onpath.Duration(100 * time.Millisecond)}
	r := b.run()
	r.plan(planOf(1, in))
	r.untilState("web", onpath.InstanceReady)
	first := pidOf(t, driver)
	if !sameNamespace(t, fmt.Sprintf("/proc/%d/ns/net", first), b.onlyNetNS()) {
		t.Error("the process is not in the instance's network namespace")
	}
	must(t, syscall.Kill(first, syscall.SIGKILL))
	b.until("it is started again", func() bool {
		got, _ := r.server.instance("web")
		return got.Restarts == 1 && got.State == onpath.InstanceReady
	})
	second := pidOf(t, driver)
	if u := r.Usage(t.Context())["acme/web"]; u.Memory == 0 {
		t.Error("it uses no memory")
	}

	r.stop()
	must(t, driver.Close())
	driver = openDriver(t, b)
	r = b.run()
	r.untilState("web", onpath.InstanceReady)
	if now := pidOf(t, driver); now != second || second == first {
		t.Errorf("process %d, then %d, after the agent's restart %d; the last two are the same one", first, second, now)
	}
	r.plan(planOf(2))
	r.untilState("web", onpath.InstanceStopped)
	b.gone()
	if unix.Kill(second, 0) == nil {
		t.Error("the process is left")
	}
}

// A container that prints without end stays ready, and its report and an event say
// that its log is not whole.
func TestLogLeftOut(t *testing.T) {
	b := newFixture(t)
	for _, program := range []string{"containerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s", program)
		}
	}
	driver := openDriver(t, b)
	b.edit = func(o *node.Options) {
		o.Runtimes = map[onpath.FunctionKind]onpath.Runtime{onpath.ContainerFunction: driver}
	}
	t.Cleanup(func() { must(t, driver.Remove(context.Background())) })
	in := routed("web", 16, "10.9.0.5/24")
	in.Spec.Container.Command = []string{"/bin/sh", "-c", "exec yes a rather ordinary line"}
	in.Spec.Resources = onpath.Resources{CPU: 200, Memory: 64 << 20}
	r := b.run()
	r.plan(planOf(1, in))
	const words = "part of its log is left out: it writes more than 4 MiB a second"
	b.until("its message says that its log is not whole", func() bool {
		got, _ := r.server.instance("web")
		return got.State == onpath.InstanceReady && got.Message == words
	})
	b.until("an event says so", func() bool { return slices.Contains(r.server.reasons(), "LogLeftOut") })
	r.plan(planOf(2))
	r.untilState("web", onpath.InstanceStopped)
	b.gone()
}

func openDriver(t *testing.T, b *fixture) *container.Driver {
	t.Helper()
	d, err := container.New(t.Context(), container.Options{
		StateDir: filepath.Join(filepath.Dir(b.host), "containers"), Name: nodeName, HostImage: true,
	})
	must(t, err)
	return d
}

func pidOf(t *testing.T, d *container.Driver) int {
	t.Helper()
	found, err := d.Adopt(t.Context())
	must(t, err)
	for _, p := range found {
		return p.Pid()
	}
	t.Fatal("no container runs")
	return 0
}

func (b *fixture) onlyNetNS() string {
	b.t.Helper()
	all, _ := filepath.Glob(filepath.Join(b.dir, "netns", "*"))
	if len(all) != 1 {
		b.t.Fatalf("namespaces %v, want one", all)
	}
	return all[0]
}

func sameNamespace(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	must(t, err)
	y, err := os.Stat(b)
	must(t, err)
	return os.SameFile(x, y)
}
