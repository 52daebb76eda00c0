package relay

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestUsageAddsUp: a relay that begins has taken nothing of what the process took before, and
// what relays take, those that have ended included, is what the process took.
func TestUsageAddsUp(t *testing.T) {
	s := subject(t)
	rt := s.Open(t)
	t.Cleanup(func() {
		if err := rt.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	begin := func(id string) onpath.Process {
		p, err := rt.Start(t.Context(), onpath.RunSpec{ID: id, Labels: map[string]string{TenantLabel: id}, Spec: s.Spec(nil), NetNS: namespace(t)})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	used := func(p onpath.Process) time.Duration {
		u, err := p.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return u.CPU
	}
	one := begin("one")
	works := func(p onpath.Process, d time.Duration) { // to be asked is work, too
		for all := ofProcess(t, p.Pid()) + d; ofProcess(t, p.Pid()) < all; {
			if _, err := p.(onpath.Relaying).Relayed(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	works(one, 200*time.Millisecond)
	two := begin("two")
	if first, second := used(one), used(two); second > first/5 {
		t.Errorf("a relay that has just begun took %s, the one before it %s", second, first)
	}
	works(two, 50*time.Millisecond)
	gone := used(one)
	if err := one.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	before := ofProcess(t, two.Pid())
	left := used(two)
	if sum, all := gone+left, ofProcess(t, two.Pid()); sum < before-30*time.Millisecond || sum > all+30*time.Millisecond {
		t.Errorf("the relays took %s and %s; the process %s to %s", gone, left, before, all)
	}
}

// ofProcess is the processor time of a process, to a hundredth of a second.
func ofProcess(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}
