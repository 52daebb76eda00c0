package inline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestMemoryOfLists: what holds a list counts where a list is named, and there alone.
func TestMemoryOfLists(t *testing.T) {
	d, _, err := agent(t, home(t))
	if err != nil {
		t.Fatal(err)
	}
	spec := func(memory onpath.Size, list string) onpath.FunctionSpec {
		s := onpath.FunctionSpec{Resources: onpath.Resources{Memory: memory}, EBPF: &onpath.EBPFSpec{Object: "firewall"}}
		if list != "" {
			s.EBPF.Files = map[string]onpath.File{"blocklist": {Content: list}}
		}
		return s
	}
	const list = "192.0.2.0/24\n"
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "blocklist") || !strings.Contains(err.Error(), "resources.memory") {
			t.Errorf("%s: %v; must speak of blocklist and of resources.memory", what, err)
		}
	}
	p := begin(t, d, "x", spec(32<<20, ""))
	uses := func(least, most onpath.Size) {
		t.Helper()
		if u, err := p.Usage(t.Context()); err != nil || u.Memory < least || u.Memory > most {
			t.Errorf("it takes %s, %v; must be from %s to %s", u.Memory, err, least, most)
		}
	}
	uses(1<<20, 17e6)
	more := spec(32<<20, list)
	refused("a list comes to a firewall that runs", p.Reconfigure(t.Context(), &more))
	if l := p.Lists(); len(l) > 0 {
		t.Errorf("lists in force are %v", l)
	}
	uses(1<<20, 17e6)
	_, err = d.Start(t.Context(), onpath.RunSpec{ID: "y", Spec: more})
	refused("a firewall with a list begins", err)
	refused("a firewall with a list is prepared", d.Prepare(t.Context(), &more, func(string) {}))
	more = spec(64<<20, list)
	if err := p.Reconfigure(t.Context(), &more); err != nil {
		t.Fatal(err)
	}
	uses(60e6, 64<<20)
	refused("less memory", p.Resize(t.Context(), onpath.Resources{Memory: 32 << 20}))
	less := spec(32<<20, "")
	if err := p.Reconfigure(t.Context(), &less); err != nil {
		t.Fatal(err)
	}
	uses(1<<20, 17e6)
	if err := d.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAdoptLittleMemory: a function in service goes on where the tables of this version
// are larger than its memory, and its log says so.
func TestAdoptLittleMemory(t *testing.T) {
	o := home(t)
	d, _, err := agent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	s := monitoring("24")
	s.Resources.Memory = 60 << 20
	p := begin(t, d, "x", s)
	path := filepath.Join(d.dir("x"), recordFile)
	record, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	former := strings.Replace(string(record), `"60Mi"`, `"4Ki"`, 1)
	if former == string(record) {
		t.Fatalf("the record names no memory: %s", record)
	}
	if err := os.WriteFile(path, []byte(former), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, found, err := agent(t, o)
	if err != nil || found["x"] == nil {
		t.Fatalf("adopted: %v, %v", found, err)
	}
	p = found["x"].(*process)
	inForce(t, p, 24)
	var log strings.Builder
	if err := d.Logs(t.Context(), "x", onpath.LogView{Tail: 10}, false, &log); err != nil || !strings.Contains(log.String(), "its resources.memory is 4Ki") {
		t.Errorf("the log says %q, %v", log.String(), err)
	}
	if err := d.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
