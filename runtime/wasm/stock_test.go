package wasm

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/functions"
	"github.com/onpath/onpath/internal/testprogram"
)

// waits are the folders of engines that wait.
func waits(t *testing.T, d *Driver) []string {
	t.Helper()
	list, err := filepath.Glob(d.dir(waiting + "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (d *Driver) awaitStock(t *testing.T) (pids []int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.Stocked(ctx); err != nil {
		t.Fatalf("no stock of engines: %v", err)
	}
	d.stock.Lock()
	defer d.stock.Unlock()
	for _, i := range d.stock.waits {
		pids = append(pids, i.pid)
	}
	return pids
}

// confined reports whether a process has given up its rights: that is an engine's last step.
func confined(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err == nil && strings.Contains(string(b), "\nSeccomp:\t2\n")
}

// TestStock: an instance takes an engine that waits, which is isolated as others are; another
// takes its place; none is left when the driver closes, nor when it was killed. What the first
// packet's way takes is printed, with an engine that waits and without.
func TestStock(t *testing.T) {
	opt := options(t)
	opt.Program = testprogram.Path(t)
	d, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	_, instance := namespaces(t)
	spec := onpath.FunctionSpec{
		Wasm:      &onpath.WasmSpec{Modules: []onpath.WasmModule{{Name: "m", Code: functions.NetmonitorModule}}},
		Resources: onpath.Resources{CPU: 500, Memory: 64 << 20}, Packets: onpath.PacketsKeep,
	}
	start := func(id string) (onpath.Process, time.Duration) {
		t.Helper()
		began := time.Now()
		p, err := d.Start(t.Context(), onpath.RunSpec{ID: id, Labels: map[string]string{"tenant": "a"}, Spec: spec, NetNS: instance})
		if err != nil {
			t.Fatal(err)
		}
		return p, time.Since(began)
	}
	stop := func(p onpath.Process) {
		t.Helper()
		if err := p.Stop(t.Context(), 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	cold, alone := start("cold")
	stop(cold)
	if n := len(waits(t, d)); n != 0 {
		t.Errorf("%d engines wait, and nobody asked for them", n)
	}
	if err := d.Prepare(t.Context(), &spec, nil); err != nil {
		t.Fatal(err)
	}
	before := d.awaitStock(t)
	p, took := start("warm")
	t.Logf("an engine that waits has its module and its packets after %s, one that is started after %s", took, alone)
	if !slices.Contains(before, p.Pid()) {
		t.Errorf("process %d did not wait; %v did", p.Pid(), before)
	}
	isolated(t, p)
	after := d.awaitStock(t)
	if slices.Contains(after, p.Pid()) || len(waits(t, d)) != inStock {
		t.Errorf("processes %v wait, %v did, %d was taken", after, before, p.Pid())
	}
	// The next agent finds what a killed one left, and the instance.
	next, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	found, err := next.Adopt(t.Context())
	if err != nil || len(found) != 1 || found["warm"].Pid() != p.Pid() || len(waits(t, d)) != 0 {
		t.Errorf("adopted %v, %v; %v wait", found, err, waits(t, d))
	}
	if a := found["warm"].(onpath.Attached); !a.AttachedTo(instance) || a.AttachedTo("/proc/self/ns/net") {
		t.Error("an adopted instance does not know its network namespace")
	}
	if old := (&process{}); !old.AttachedTo(instance) {
		t.Error("an instance of an earlier version, which noted no namespace, would be started anew")
	}
	for _, pid := range after {
		if confined(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Remove(context.Background()); err != nil {
		t.Error(err)
	}
}
