package onpath_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/onpath/onpath"
)

// TestRedactVerification: tenant me sees nothing of tenant acme, whose name ends with its own.
func TestRedactVerification(t *testing.T) {
	x := &onpath.Counterexample{
		Instance: "acme/fw-1", Promised: []string{"acme/fw", "me/ids"}, Message: "is sent through element 1 (acme/fw) of chain acme/web", About: []string{"acme/web"},
		Way: []onpath.Note{{Text: "gateway gw1"}, {Text: "acme/fw-1 on n1", About: "acme/fw-1"}, {Text: "me/ids-1 on n1", About: "me/ids-1"}},
	}
	p := &onpath.Verification{Rest: &onpath.ChainVerification{}, Notes: []string{"acme"}, Chains: []onpath.ChainVerification{{Chain: "me/web", Counterexample: x}}}
	p.Redact("me")
	data, err := json.Marshal(p)
	if err != nil || strings.Contains(string(data), "acme") || !strings.Contains(string(data), `"way":["gateway gw1","not yours","me/ids-1 on n1"]`) ||
		!strings.Contains(string(data), `"promised":["not yours","me/ids"]`) || p.Rest != nil {
		t.Errorf("tenant me sees %s (%v)", data, err)
	}
	x.Message, x.About = "is dropped", []string{"me/web"}
	if p.Redact("me"); x.Message != "is dropped" {
		t.Errorf("of its own chain it reads %q", x.Message)
	}
}

// TestRedactTrace: likewise of a trace.
func TestRedactTrace(t *testing.T) {
	counted := &onpath.VportCounters{}
	tr := &onpath.Trace{
		Chains:   []string{"acme/guard", "me/web"},
		Warnings: []onpath.Note{{Text: "chain acme/guard", About: "acme/guard"}, {Text: "mine", About: "me/web"}, {Text: "all"}},
		Forward: []onpath.TraceHop{{Kind: onpath.HopEdge, Node: "gw1", Counters: counted},
			{Kind: onpath.HopElement, Node: "n1", Name: "acme/fw-1", Chain: "acme/guard", Counters: counted}, {Kind: onpath.HopElement, Name: "me/ids-1", Chain: "me/web", Counters: counted}},
	}
	tr.Redact("me")
	data, err := json.Marshal(tr)
	if err != nil || strings.Contains(string(data), "acme") || !strings.Contains(string(data), `"warnings":["mine","all"]`) ||
		tr.Forward[0].Counters != nil || tr.Forward[1].Counters != nil || tr.Forward[2].Counters == nil {
		t.Errorf("tenant me sees %s (%v)", data, err)
	}
}
