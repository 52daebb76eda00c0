package onpath_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/onpath/onpath"
)

func TestClipText(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("x", onpath.MaxText)} {
		if got := onpath.ClipText(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	for _, s := range []string{strings.Repeat("x", onpath.MaxText+1), strings.Repeat("é", onpath.MaxText), "x" + strings.Repeat("€", onpath.MaxText)} {
		if got := onpath.ClipText(s); len(got) > onpath.MaxText || len(got) < onpath.MaxText-8 || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
			t.Errorf("%d bytes became %d: …%q", len(s), len(got), got[len(got)-8:])
		}
	}
}

// TestCheckSize: a spec leaves room for the status, whose own size does not count.
func TestCheckSize(t *testing.T) {
	o, _ := onpath.New(onpath.KindChain)
	c := o.(*onpath.Chain)
	c.Metadata.Name = "x"
	c.Metadata.Labels = map[string]string{"x": strings.Repeat("x", onpath.MaxSpec-300)}
	c.Status.Conditions = []onpath.Condition{{Type: "Ready", Message: strings.Repeat("x", 60<<10)}}
	if err := onpath.CheckSize(c); err != nil {
		t.Error(err)
	}
	c.Metadata.Labels["y"] = strings.Repeat("x", 300)
	if err := onpath.CheckSize(c); onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Errorf("too large: %v", err)
	}
}

// TestClipReports: no text of a report is longer than MaxText once the report is clipped.
func TestClipReports(t *testing.T) {
	long := strings.Repeat("x", onpath.MaxText+1)
	in := onpath.InstanceReport{Message: long, Refused: long, Printed: long}
	r := onpath.NodeReport{PlanError: long, Instances: []onpath.InstanceReport{in}, Conditions: []onpath.Condition{{Message: long}}}
	r.Clip()
	in = r.Instances[0]
	for _, s := range []string{in.Message, in.Refused, in.Printed, r.PlanError, r.Conditions[0].Message} {
		if len(s) > onpath.MaxText {
			t.Errorf("a text of %d bytes is left", len(s))
		}
	}
}
