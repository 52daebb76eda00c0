package control

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/pool"
	"github.com/onpath/onpath/plan"
)

// The least round trip between nodes of two cloudlets is that of the cloudlets; one without
// an answer, to an origin or within a cloudlet is none.
func TestRoundTripsOfCloudlets(t *testing.T) {
	report := func(list ...onpath.Distance) *session {
		return &session{state: plan.NodeState{Report: &onpath.NodeReport{Distances: list}}}
	}
	ms := func(n int) onpath.Duration { return onpath.Duration(time.Duration(n) * time.Millisecond) }
	sessions := map[string]*session{
		"a1": report(onpath.Distance{To: "b1", RTT: ms(20)}, onpath.Distance{To: "a2", RTT: ms(1)}, onpath.Distance{To: "c1"}),
		"a2": report(onpath.Distance{To: "b1", RTT: ms(10)}, onpath.Distance{To: "192.0.2.1:80", RTT: ms(3)}),
	}
	cloudlets := map[string]pool.Cloudlet{"a": {Share: 5}, "b": {}, "c": {}}
	noteRoundTrips(sessions, []pool.Node{{Name: "a1", Cloudlet: "a"}, {Name: "a2", Cloudlet: "a"}, {Name: "b1", Cloudlet: "b"},
		{Name: "c1", Cloudlet: "c"}, {Name: "d1", Cloudlet: "gone"}}, cloudlets)
	if got := cloudlets["a"]; got.Share != 5 || len(got.RTT) != 1 || got.RTT["b"] != 10*time.Millisecond {
		t.Errorf("cloudlet a: %+v", got)
	}
	if len(cloudlets) != 3 || cloudlets["b"].RTT != nil {
		t.Errorf("%+v", cloudlets)
	}
}
