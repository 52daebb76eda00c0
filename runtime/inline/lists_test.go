package inline

import (
	"fmt"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestListsSince: an instance says how many addresses of a list are in force, and since
// when: also after its agent began anew, and after a change of something else.
func TestListsSince(t *testing.T) {
	o := home(t)
	d, _, err := agent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	spec := func(list, otherwise string) onpath.FunctionSpec {
		return onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: "firewall", Config: onpath.Env{"default": otherwise},
			Files: map[string]onpath.File{"blocklist": {Content: list}}}}
	}
	one := func(p *process, entries int) time.Time {
		t.Helper()
		l := p.Lists()
		if len(l) != 1 || l[0].Type != "blocklist" || l[0].Message != fmt.Sprint(entries, " entries") || time.Since(l[0].Since) > time.Minute {
			t.Fatalf("lists are %+v; must be one of %d entries", l, entries)
		}
		return l[0].Since
	}
	tell := func(p *process, s onpath.FunctionSpec) {
		t.Helper()
		if err := p.Reconfigure(t.Context(), &s); err != nil {
			t.Fatal(err)
		}
	}
	const first = "192.0.2.1\n192.0.2.0/28\n2001:db8::/32\n"
	p := begin(t, d, "x", spec(first, "allow"))
	since := one(p, 2)
	tell(p, spec(first, "drop"))
	if got := one(p, 2); !got.Equal(since) {
		t.Errorf("after another change the list is in force since %s, was %s", got, since)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d, found, err := agent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	p = found["x"].(*process)
	tell(p, spec(first, "drop"))
	if got := one(p, 2); !got.Equal(since) {
		t.Errorf("with another agent the list is in force since %s, was %s", got, since)
	}
	tell(p, spec(first+"198.51.100.1\n", "drop"))
	if got := one(p, 3); !got.After(since) {
		t.Errorf("another list is in force since %s, the one before since %s", got, since)
	}
	bad := spec("198.51.100.1\nx", "drop")
	if err := p.Reconfigure(t.Context(), &bad); err == nil {
		t.Error("a broken list is taken")
	}
	one(p, 3)
	if err := d.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}
