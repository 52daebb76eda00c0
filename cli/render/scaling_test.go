package render

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestScalingPage: the number of each element is drawn from the first decision to the last
// one, whichever they are of.
func TestScalingPage(t *testing.T) {
	at := time.Date(2026, 11, 26, 7, 0, 0, 0, time.UTC)
	o := &onpath.Chain{}
	o.Metadata.Name = "web<script>"
	o.Spec.Through = []onpath.Element{{Function: "ids"}, {Function: "cache"}}
	o.Spec.Scaling = &onpath.Scaling{}
	o.Status.Scaling = &onpath.ScalingStatus{Decisions: []onpath.ScalingDecision{
		{Time: at, Took: onpath.Duration(2 * time.Second), From: map[string]int{"ids": 1}, To: map[string]int{"ids": 2}, Kept: true, Before: 50, After: 100, Text: "ids 1 → 2: kept"},
		{Time: at.Add(time.Minute), Took: onpath.Duration(2 * time.Second), From: map[string]int{"cache": 1}, To: map[string]int{"cache": 2}, Before: 100, After: 101, Text: "cache 1 → 2: taken back"},
	}}
	var page strings.Builder
	if err := ScalingPage(&page, o); err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`<polyline [^>]*points="(\S+) [^"]*?(\S+)"`).FindAllStringSubmatch(page.String(), -1)
	if len(lines) != 3 { // the value, and a number for each element
		t.Fatalf("%d lines, must be 3", len(lines))
	}
	for _, l := range lines {
		if !strings.HasPrefix(l[1], "60.0,") || !strings.HasPrefix(l[2], "740.0,") {
			t.Errorf("a line goes from %s to %s, must go from 60 to 740", l[1], l[2])
		}
	}
	if strings.Contains(page.String(), "<script>") {
		t.Error("a name is markup")
	}
}
