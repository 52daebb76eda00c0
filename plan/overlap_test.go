package plan

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/onpath/onpath"
)

// TestReach: matches that have a destination in common are never told apart by it.
func TestReach(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	some := func() netip.Prefix {
		if rng.IntN(3) == 0 {
			return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, byte(rng.IntN(4)), 15: byte(rng.IntN(4))}), rng.IntN(129))
		}
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rng.IntN(4)), 0, byte(rng.IntN(4))}), rng.IntN(33))
	}
	met := 0
	for range 20_000 {
		a, b := []netip.Prefix{some(), some()}, []netip.Prefix{some()}
		x, y := reachOf([]onpath.Match{{Dst: a}}), reachOf([]onpath.Match{{Dst: b}})
		meets := x[0].meets(&y[0]) || x[1].meets(&y[1])
		if (a[0].Overlaps(b[0]) || a[1].Overlaps(b[0])) && !meets {
			t.Fatalf("%v and %v", a, b)
		}
		if meets {
			met++
		}
	}
	if met == 0 || met == 20_000 {
		t.Errorf("%d of 20000 meet", met)
	}
}
