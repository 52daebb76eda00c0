package cloud

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/measure/trial"
)

// nat is a network that passes UDP alone: what is sent directly by TCP is never answered.
type nat struct {
	steered bool
	rate    float64
	rounds  []bool // whether each was steered
}

func (n *nat) Try(_ context.Context, r trial.Request) (*trial.Result, error) {
	switch {
	case r.Kind == trial.Network:
		return &trial.Result{Packets: []trial.Packet{{Name: trial.TCP, Why: "no answer"}, {Name: trial.UDP, Arrived: true, HopLimit: 62},
			{Name: trial.ICMP, Why: "it does not arrive"}, {Name: "size 1500", Size: 1500, Arrived: true}}}, nil
	case r.Protocol == trial.ByTCP && !n.steered:
		return nil, onpath.Errorf(onpath.CodeUnavailable, "no answer")
	case r.Kind == trial.RoundTrip && r.Protocol != trial.ByUDP:
		return nil, onpath.Errorf(onpath.CodeInternal, "the network drops ICMP")
	case r.Kind == trial.RoundTrip:
		return &trial.Result{RoundTrips: []onpath.Duration{onpath.Duration(3 * time.Millisecond), onpath.Duration(time.Millisecond), onpath.Duration(2 * time.Millisecond)}}, nil
	}
	n.rate += 1e6
	return &trial.Result{Rate: n.rate}, nil
}

func (n *nat) Steer(_ context.Context, steer bool) error {
	n.steered, n.rounds = steer, append(n.rounds, steer)
	return nil
}

func (n *nat) Use(_ context.Context, tunnel string) (string, error) {
	if tunnel == "vxlan" {
		return "", onpath.Errorf(onpath.CodeUnavailable, "waited in vain: vxlan is not answered")
	}
	return "wireguard", nil
}

// TestRun: ways are measured in ABBA order, by what the network passes; what cannot be
// measured is said, and the report shows the published figures beside.
func TestRun(t *testing.T) {
	n := &nat{}
	r, err := Run(t.Context(), n, Options{From: "a", Through: "b", To: "c", Tunnels: []string{"vxlan", "wireguard"}, Rounds: 2, Echoes: 3,
		For: time.Second, Progress: func(string, ...any) {}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(n.rounds, []bool{false, true, true, false}) || r.Echo != trial.ByUDP || len(r.Pairs) != 3 || len(r.Ways) != 3 {
		t.Fatalf("steered %v, %+v", n.rounds, r)
	}
	vxlan, plain, wireguard := r.Ways[0], r.Ways[1], r.Ways[2]
	if vxlan.Name != "vxlan" || vxlan.UDP != nil || len(vxlan.Why) != 1 {
		t.Errorf("%+v", vxlan)
	}
	if plain.Name != "direct" || plain.TCP != nil || plain.UDP.Rounds != 2 || plain.RoundTrip.Median != 2 || len(plain.Why) != 1 {
		t.Errorf("%+v", plain)
	}
	if wireguard.Name != "wireguard" || wireguard.TCP == nil || wireguard.UDP == nil || wireguard.TCP.Low > wireguard.TCP.High {
		t.Errorf("%+v", wireguard)
	}
	var b strings.Builder
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a → b", "largest packet, bytes", "m3.2xlarge", "wireguard, UDP: ", "no answer", "vxlan is not answered"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, b.String())
		}
	}
}
