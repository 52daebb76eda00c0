package inline

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	firewall "github.com/onpath/onpath/functions/ebpf-firewall"
	loadbalancer "github.com/onpath/onpath/functions/ebpf-loadbalancer"
	monitor "github.com/onpath/onpath/functions/ebpf-monitor"
	ratelimit "github.com/onpath/onpath/functions/ebpf-ratelimit"
	"github.com/onpath/onpath/internal/bpfobject"
	"github.com/onpath/onpath/sdk"
)

var comeWithOnpath = []sdk.Function{firewall.Function, loadbalancer.Function, monitor.Function, ratelimit.Function}

// home is where an agent's ebpf functions are: a disk of one megabyte.
func home(t *testing.T) Options {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to load programs")
	}
	disk := t.TempDir()
	o := Options{Dir: filepath.Join(disk, "functions"), Functions: comeWithOnpath,
		PinPath: fmt.Sprintf("%s-test-%d", bpfobject.PinPath, os.Getpid())}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(disk, unix.MNT_DETACH), os.RemoveAll(o.PinPath)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return o
}

// agent is a driver that has adopted what is there.
func agent(t *testing.T, o Options) (*Driver, map[string]onpath.Process, error) {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	found, err := d.Adopt(t.Context())
	return d, found, err
}

// fill takes all space of the disk; it gives what frees it.
func fill(t *testing.T, o Options) (free func()) {
	t.Helper()
	path := filepath.Join(filepath.Dir(o.Dir), "ballast")
	_ = os.WriteFile(path, make([]byte, 2<<20), 0o600) // as much as fits
	if err := os.WriteFile(path+"-more", []byte("x"), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	return func() {
		if err := errors.Join(os.Remove(path), os.Remove(path+"-more")); err != nil {
			t.Fatal(err)
		}
	}
}

func monitoring(prefix string) onpath.FunctionSpec {
	return onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: "monitor",
		Config: onpath.Env{"by": "source", "prefix4": prefix, "collector": "127.0.0.1:9", "every": "1h"}}}
}

func begin(t *testing.T, d *Driver, id string, s onpath.FunctionSpec) *process {
	t.Helper()
	p, err := d.Start(t.Context(), onpath.RunSpec{ID: id, Labels: map[string]string{"of": id}, Spec: s})
	if err != nil {
		t.Fatal(err)
	}
	return p.(*process)
}

// inForce fails unless a monitor's tables say prefix4, and it exports.
func inForce(t *testing.T, p *process, prefix uint32) {
	t.Helper()
	var c struct{ By, Sample, Prefix4, Prefix6 uint32 } // onpath_config of the monitor
	if err := p.tables[bpfobject.ConfigTable].Lookup(uint32(0), &c); err != nil || c.Prefix4 != prefix {
		t.Errorf("prefix4 %d is in force, %v; must be %d", c.Prefix4, err, prefix)
	}
	if p.leave == nil {
		t.Error("flows are not exported any more")
	}
}

// TestAdoptFullDisk: functions in service and what they know are taken over also where
// nothing can be written.
func TestAdoptFullDisk(t *testing.T) {
	o := home(t)
	d, _, err := agent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	p := begin(t, d, "x", monitoring("24"))
	type count struct{ Packets, Bytes, First, Last uint64 }
	if err := p.tables["counts"].Put([40]byte{36: 17, 37: 4}, count{Packets: 7}); err != nil { // of UDP, IPv4
		t.Fatal(err)
	}
	was := p.Inline()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	free := fill(t, o)
	d, found, err := agent(t, o)
	if err != nil || found["x"] == nil || found["x"].Labels()["of"] != "x" {
		t.Fatalf("adopted: %v, %v", found, err)
	}
	p = found["x"].(*process)
	inForce(t, p, 24)
	if keys, err := p.Keys(); err != nil || len(keys) != 1 || keys[0].Count.Packets != 7 {
		t.Errorf("it has counted %+v, %v", keys, err)
	}
	object, err := os.ReadFile(was.Object)
	if p.Inline() != was || err != nil || !bytes.Equal(object, monitor.Function.Object) {
		t.Errorf("the data path is given %+v, was %+v; the object: %d bytes, %v", p.Inline(), was, len(object), err)
	}
	// The agent tells it what it knows already, and then something else.
	same, other := monitoring("24"), monitoring("16")
	if err := p.Reconfigure(t.Context(), &same); err != nil {
		t.Errorf("told what it knows: %v", err)
	}
	if err := p.Reconfigure(t.Context(), &other); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("told something else, on a full disk: %v", err)
	}
	inForce(t, p, 24)
	free()
	if err := p.Reconfigure(t.Context(), &other); err != nil {
		t.Fatal(err)
	}
	inForce(t, p, 16)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, found, err = agent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	inForce(t, found["x"].(*process), 16)
	if err := d.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAdoptFormerFullDisk: where this version has another object and cannot keep it,
// the former one goes on.
func TestAdoptFormerFullDisk(t *testing.T) {
	o := home(t)
	d, _, err := agent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	spec := onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: "loadbalancer", Config: onpath.Env{"virtual": "203.0.113.10", "ports": "80", "check": "none", "backends": "10.9.0.2"}}}
	now := begin(t, d, "x", spec).Inline()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("../../functions/ebpf-loadbalancer/testdata/loadbalancer_former.o")
	if err != nil {
		t.Fatal(err)
	}
	former, err := bpfobject.Parse(code)
	if err == nil {
		err = errors.Join(os.WriteFile(now.Object, code, 0o600), os.RemoveAll(now.Maps))
	}
	if err != nil {
		t.Fatal(err)
	}
	tables, err := former.OpenTables(now.Maps)
	if err != nil {
		t.Fatal(err)
	}
	defer bpfobject.CloseTables(tables)
	free := fill(t, o)
	d, found, err := agent(t, o)
	if err != nil || found["x"] == nil {
		t.Fatalf("adopted: %v, %v", found, err)
	}
	p := found["x"].(*process)
	same := p.tables["backends"]
	if got, err := os.ReadFile(now.Object); p.Inline().SHA256 != former.SHA256 || err != nil || !bytes.Equal(got, code) {
		t.Errorf("the data path is given %+v and %d bytes, %v; must be the former object", p.Inline(), len(got), err)
	}
	if x, err := same.Info(); err != nil {
		t.Error(err)
	} else if y, err := tables["backends"].Info(); err != nil || must(t, x.ID) != must(t, y.ID) {
		t.Errorf("the tables are others: %v", err)
	}
	if err := p.Reconfigure(t.Context(), &spec); onpath.CodeOf(err) != onpath.CodeUnavailable {
		t.Errorf("told what is of this version: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	free()
	if d, found, err = agent(t, o); err != nil || found["x"] == nil || found["x"].(*process).Inline() != now {
		t.Errorf("with space again: %v, %v", found, err)
	}
	if err := d.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAdoptNotNow: what cannot be read now stays, is taken over later, and keeps
// nothing else from being taken over; what never can be goes.
func TestAdoptNotNow(t *testing.T) {
	o := home(t)
	d, _, err := agent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"good", "away", "spoilt"} {
		begin(t, d, id, monitoring("24"))
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	file := func(id string) string { return filepath.Join(o.Dir, id, recordFile) }
	if err := errors.Join(os.Rename(file("away"), file("away")+"-"), os.Mkdir(file("away"), 0o700), os.WriteFile(file("spoilt"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	d, found, err := agent(t, o)
	if err == nil || !strings.Contains(err.Error(), "away") || len(found) != 1 || found["good"] == nil {
		t.Errorf("adopted: %v, %v; must be good, and an error about away", found, err)
	}
	for id, want := range map[string]bool{"away": true, "spoilt": false} {
		_, disk := os.Stat(d.dir(id))
		_, pins := os.Stat(d.pins(id))
		if (disk == nil) != want || (pins == nil) != want {
			t.Errorf("of %s: %v, %v", id, disk, pins)
		}
	}
	if err := errors.Join(os.Remove(file("away")), os.Rename(file("away")+"-", file("away"))); err != nil {
		t.Fatal(err)
	}
	good := found["good"]
	if found, err = d.Adopt(t.Context()); err != nil || len(found) != 2 || found["away"] == nil || found["good"] != good {
		t.Errorf("asked again: %v, %v", found, err)
	}
	if err := d.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func must[T any](t *testing.T, get func() (T, bool)) T {
	t.Helper()
	v, ok := get()
	if !ok {
		t.Fatal("the kernel does not tell")
	}
	return v
}

// TestReconfigureNotKept: a configuration that cannot be kept is not in force, and what
// the node does beside the function goes on.
func TestReconfigureNotKept(t *testing.T) {
	o := home(t)
	d, _, err := agent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	p := begin(t, d, "x", monitoring("24"))
	other := monitoring("16")
	// A folder is not replaced by a file. (That nothing can be written at all, a full
	// disk, TestAdoptFullDisk sees.)
	path := filepath.Join(d.dir("x"), recordFile)
	if err := os.Rename(path, path+"-"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Reconfigure(t.Context(), &other); err == nil {
		t.Error("the record cannot be replaced, and nothing is said")
	}
	inForce(t, p, 24)
	if left, _ := filepath.Glob(filepath.Join(d.dir("x"), ".*.new-*")); len(left) > 0 {
		t.Errorf("drafts are left: %v", left)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := p.Reconfigure(t.Context(), &other); err != nil {
		t.Error(err)
	}
	inForce(t, p, 16)
	if err := d.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLogOfFunction: it does not grow for ever, and its end can be had.
func TestLogOfFunction(t *testing.T) {
	o := home(t)
	o.Dir = t.TempDir()
	d, _, err := agent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	p := begin(t, d, "x", monitoring("24"))
	if err := os.Truncate(filepath.Join(d.dir("x"), logFile), 5<<20); err != nil { // as a former version left it
		t.Fatal(err)
	}
	p.say("short again")
	if info, err := os.Stat(filepath.Join(d.dir("x"), logFile)); err != nil || info.Size() > 100 {
		t.Errorf("a log that is too long already: %v, %v", info.Size(), err)
	}
	const lines = 40_000
	for i := range lines {
		p.say("backend 10.9.0.%d is down, or so it seems from here: line %d", i%256, i)
	}
	files, err := filepath.Glob(filepath.Join(d.dir("x"), logFile+"*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("the log is in %v, %v", files, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() > 1<<20 {
			t.Errorf("%s: %v, %v", f, info.Size(), err)
		}
	}
	for _, n := range []int{2, 15_000} { // of one file, and of both
		var out bytes.Buffer
		if err := d.Logs(t.Context(), "x", onpath.LogView{Tail: n}, false, &out); err != nil {
			t.Fatal(err)
		}
		got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if len(got) != n || !strings.HasSuffix(got[0], fmt.Sprintf("line %d", lines-n)) || !strings.HasSuffix(got[n-1], fmt.Sprintf("line %d", lines-1)) {
			t.Errorf("the last %d lines are %d, from %q to %q", n, len(got), got[0], got[len(got)-1])
		}
	}
	if err := d.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
