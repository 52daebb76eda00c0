package meter

import (
	"testing"
	"time"
)

// TestSendsSpoofed: an instance of which most packets are dropped as spoofed is told once,
// a few stray ones are not, and it is over once most of what it sends passes.
func TestSendsSpoofed(t *testing.T) {
	type step struct {
		after        time.Duration
		all, spoofed uint64 // more than before
		over         bool
	}
	for name, steps := range map[string][]step{
		"all":                       {{0, 500, 400, false}, {15 * time.Second, 30, 30, true}, {15 * time.Second, 0, 0, true}, {time.Hour, 0, 0, true}},
		"half, slowly":              {{0, 0, 0, false}, {20 * time.Second, 15, 8, false}, {20 * time.Second, 15, 8, false}, {20 * time.Second, 8, 4, true}},
		"a few":                     {{0, 0, 0, false}, {15 * time.Second, 19, 19, false}, {time.Minute, 10, 10, false}, {time.Minute, 10, 10, false}},
		"many, and far more passes": {{0, 0, 0, false}, {15 * time.Second, 10_000, 300, false}},
		"it is over":                {{0, 0, 0, false}, {15 * time.Second, 30, 30, true}, {time.Minute, 30, 2, false}, {15 * time.Second, 30, 30, true}},
	} {
		var s sending
		n := sent{at: time.Unix(1000, 0)}
		for i, x := range steps {
			was := s.over
			n = sent{n.at.Add(x.after), n.all + x.all, n.spoofed + x.spoofed}
			if changed := s.note(n); s.over != x.over || changed != (was != s.over) {
				t.Errorf("%s, step %d: over %t (changed %t), must be %t", name, i, s.over, changed, x.over)
			}
		}
		s.note(sent{n.at, 1, 1}) // of another data path
		if len(s.list) != 1 {
			t.Errorf("%s: counts of another data path are added up", name)
		}
	}
}
