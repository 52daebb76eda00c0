package plan

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestClockSetBack: a server that was two days ahead decides as before once its clock is
// right: chains are not young again, and what drains goes in time. A clock set forward
// makes no chain younger either.
func TestClockSetBack(t *testing.T) {
	for _, step := range []time.Duration{-48 * time.Hour, -time.Hour, time.Minute, 48 * time.Hour} {
		s := fraWeb(t, 3, 2)
		for _, i := range s.instances("web-fw") {
			s.busy[i.Metadata.Name] = true
		}
		s.apply(aChain("default", "web", through("fw", 1)))
		s.settle()
		s.now = s.now.Add(step)
		s.hear()
		s.pass(3 * time.Second)
		for n, st := range s.states {
			for _, p := range st.Acked.Datapath.Paths {
				if p.AdoptFor < 0 || p.AdoptFor > p.Adopt || p.Began.After(s.now) {
					t.Errorf("%s: node %s: path %d began %s after now, and is young for %s of %s", step, n, p.ID, p.Began.Sub(s.now), p.AdoptFor, p.Adopt)
				}
			}
		}
		s.pass(time.Duration(onpath.DefaultDrain) + 10*time.Second)
		if left := len(s.instances("web-fw")); left != 1 {
			t.Errorf("%s: %d instances are left of one that stays", step, left)
		}
	}
}
