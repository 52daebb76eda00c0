package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/await"
)

// TestConfigRefused: a chain whose running function did not take its configuration
// is not what its spec says, and neither is one that has not been told yet.
func TestConfigRefused(t *testing.T) {
	s := newSim(t, 5)
	s.site("fra1", 1, 1)
	firewall := func(rules string, generation int64) *onpath.Function {
		f := aFunction("default", "fw", func(f *onpath.FunctionSpec) {
			f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "firewall", Config: onpath.Env{"rules": rules}}
		})
		f.Metadata.Generation = generation
		return f
	}
	s.apply(firewall("drop udp", 1), aChain("default", "web", through("fw", 1)))
	s.settle()
	look := func() (c *onpath.Chain, current onpath.Condition, done, refused bool) {
		c = s.chain("default", "web")
		at := slices.IndexFunc(c.Status.Conditions, func(c onpath.Condition) bool { return c.Type == "Current" })
		functions := map[onpath.Key]int64{{Kind: onpath.KindFunction, Tenant: "default", Name: "fw"}: 2}
		w := await.Wait{Functions: functions}
		got := w.Look(c, s.now)
		return c, c.Status.Conditions[at], got.Done, got.Vain != nil
	}
	if c, current, _, _ := look(); current.Status != onpath.True || c.Status.Elements[0].Outdated != 0 {
		t.Fatalf("at first: %+v", c.Status)
	}

	s.apply(firewall("drop tcq", 2))
	s.think() // the node has not heard of it
	if _, current, done, refused := look(); current.Status != onpath.False || current.Reason != "Replacing" || done || refused {
		t.Errorf("before its node has told it: %+v, done %t, refused %t", current, done, refused)
	}
	s.refuses = `rules: line 1: "tcq" is no protocol`
	s.settle()
	c, current, done, refused := look()
	if current.Status != onpath.False || current.Reason != onpath.ReasonConfigRefused || !strings.Contains(current.Message, s.refuses) {
		t.Errorf("refused: %+v", current)
	}
	if e := c.Status.Elements[0]; e.Ready != 1 || e.Outdated != 1 || !strings.Contains(e.Message, s.refuses) {
		t.Errorf("refused: %+v", e)
	}
	if !c.Status.Active || done || !refused {
		t.Errorf("active %t, done %t, refused %t", c.Status.Active, done, refused)
	}
	d := c.OwnDeployments()[0]
	if len(d.Status.Conditions) == 0 || !strings.Contains(d.Status.Conditions[0].Message, s.refuses) {
		t.Errorf("its deployment says %+v", d.Status.Conditions)
	}

	s.apply(firewall("drop tcp", 3))
	s.refuses = ""
	s.settle()
	if _, current, done, refused := look(); current.Status != onpath.True || !done || refused {
		t.Errorf("mended: %+v, done %t, refused %t", current, done, refused)
	}
}

// TestConfigRefusedDeployment: the same of a deployment that is an object.
func TestConfigRefusedDeployment(t *testing.T) {
	s := newSim(t, 6)
	s.site("fra1", 1, 1)
	d := aDeployment("default", "fw", "fw", 1)
	d.Spec.Place.Cloudlets = []string{"fra1"}
	s.apply(aFunction("default", "fw", func(f *onpath.FunctionSpec) {
		f.Container, f.EBPF = nil, &onpath.EBPFSpec{Object: "firewall"}
	}), d)
	s.refuses = "default: \"dorp\" is neither allow, drop nor refuse"
	s.settle()
	got := s.objects[onpath.KeyOf(d)].(*onpath.Deployment)
	at := slices.IndexFunc(got.Status.Conditions, func(c onpath.Condition) bool { return c.Type == "Current" })
	if c := got.Status.Conditions[at]; c.Status != onpath.False || c.Reason != onpath.ReasonConfigRefused || !strings.Contains(c.Message, "dorp") {
		t.Errorf("%+v", c)
	}
	if w := (await.Wait{}); w.Look(got, s.now).Vain == nil {
		t.Error("one who waits for it waits in vain")
	}
}
