package plan

import (
	"testing"

	"github.com/onpath/onpath"
)

func asRun(spec onpath.FunctionSpec) functionOf {
	return functionAsRun(&onpath.Function{Spec: spec}, name{}, nil, nil)
}

// TestInlineElements: what a chain may not ask of ebpf functions.
func TestInlineElements(t *testing.T) {
	fn := &deployment{key: name{"default", "f"}, functionOf: asRun(onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: "firewall"}})}
	box := &deployment{key: name{"default", "c"}, functionOf: asRun(onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: "host"}})}
	row := func(parts string) *chain {
		c := &chain{obj: &onpath.Chain{Metadata: onpath.Metadata{Name: "web", Tenant: "default"}}}
		for _, p := range parts {
			e := element{d: fn, mode: onpath.ModeInline}
			if p != 'f' {
				e.d = box
			}
			if p == 'm' {
				e.mode = onpath.ModeMirror
			}
			c.elements = append(c.elements, e)
		}
		return c
	}
	for parts, ok := range map[string]bool{
		"ffffffff": true, "fffffffff": false, "ffffffffcffffffff": true, "ffffmfffff": false, "": true, "c": true,
	} {
		c := row(parts)
		if c.checkRuns(); (len(c.errs) == 0) != ok {
			t.Errorf("%q gives %v", parts, c.errs)
		}
	}
	if fn.addressing() != onpath.AddressesNone {
		t.Error("an ebpf function gets an address")
	}
	a, b := *fn, *fn
	b.spec.EBPF = &onpath.EBPFSpec{Object: "firewall", Config: onpath.Env{"default": "drop"}}
	if a.spec.Shape(a.fnName.String()) != b.spec.Shape(b.fnName.String()) {
		t.Error("another configuration makes new instances")
	}
	b.spec.EBPF = &onpath.EBPFSpec{Object: "mine.o", Code: onpath.ObjectCode("x")}
	if a.spec.Shape(a.fnName.String()) == b.spec.Shape(b.fnName.String()) {
		t.Error("another object makes no new instances")
	}
}
