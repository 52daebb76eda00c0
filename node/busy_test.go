package node

import (
	"errors"
	"testing"

	"github.com/onpath/onpath"
)

func TestCPUTimes(t *testing.T) {
	before := parseCPUTimes("cpu  100 20 30 4000 50 6 7 8 90 10\n")
	if want := (cpuTimes{idle: 4050, all: 4221}); before != want {
		t.Fatalf("the times are %+v, must be %+v", before, want)
	}
	for _, k := range []struct {
		line string
		busy bool
	}{
		{"cpu  195 20 30 4005 50 6 7 8 90 10\n", true},
		{"cpu  180 20 30 4020 50 6 7 8 90 10\n", false},
		{"cpu  100 20 30 4000 50 6 7 8 90 10\n", false}, // no time has passed
		{"cpu  something else\n", false},
		{"", false},
	} {
		if got := parseCPUTimes(k.line).busySince(before); got != k.busy {
			t.Errorf("after %q the CPUs count as busy: %v, must be %v", k.line, got, k.busy)
		}
	}
	if parseCPUTimes("cpu  195 20 30 4005 50 6 7 8 90 10\n").busySince(cpuTimes{}) {
		t.Error("times that could not be read count as busy")
	}
	if readCPUTimes().all == 0 {
		t.Error("/proc/stat cannot be read")
	}
}

// TestLateProbes: probes that end too late while all CPUs are busy count a tenth.
func TestLateProbes(t *testing.T) {
	h := healthOf(onpath.Health{Exec: []string{"true"}, Failures: 3})
	late, failed := lateProbe{errors.New("too late")}, errors.New("gives 1")
	counts := (*watch).counts
	w := &watch{health: h}
	for n := range 3 * latePatience {
		if counts(w, late) {
			t.Fatalf("late probe %d in a row counts, must not", n+1)
		}
	}
	if !counts(w, late) {
		t.Errorf("after %d late probes in a row the next must count", 3*latePatience)
	}
	w = &watch{health: h}
	if !counts(w, failed) || counts(w, late) || !counts(w, failed) {
		t.Error("a probe that fails must count, a late one not")
	}
	w.late = 3 * latePatience
	counts(w, nil)
	if counts(w, late) {
		t.Error("after a success a late probe counts, must not")
	}
}
