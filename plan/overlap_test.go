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

// TestMayMeet: chains that select the same traffic are never told apart beforehand.
func TestMayMeet(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	some := func() (list []netip.Prefix) {
		for range rng.IntN(3) { // none: any
			if rng.IntN(2) == 0 {
				list = append(list, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 15: byte(rng.IntN(4))}), 126+rng.IntN(3)).Masked())
				continue
			}
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(16))}), 28+rng.IntN(5)).Masked())
		}
		return tidy(list)
	}
	selecting := func() *chain {
		c := &chain{obj: aChain("default", "c"), cloudlets: []string{"fra1"}}
		for range 1 + rng.IntN(2) {
			c.forward = append(c.forward, onpath.Match{Src: some(), Dst: some()})
		}
		c.span()
		return c
	}
	apart := 0
	for range 20_000 {
		a, b := selecting(), selecting()
		m, ok := contest(a, b)
		if ok && !a.mayMeet(b) {
			t.Fatalf("%+v and %+v: %s", a.forward, b.forward, words(m))
		}
		if !a.mayMeet(b) {
			apart++
		}
	}
	if apart == 0 || apart == 20_000 {
		t.Errorf("%d of 20000 are told apart", apart)
	}
}
