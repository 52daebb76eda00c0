package onpath

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestMeets compares with looking at every prefix.
func TestMeets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	prefix := func() netip.Prefix {
		if r.IntN(3) == 0 {
			a := netip.AddrFrom16([16]byte{0x20, 1, byte(r.IntN(4)), byte(r.IntN(256)), byte(r.IntN(256))})
			return netip.PrefixFrom(a, 16+r.IntN(30)).Masked()
		}
		a := netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), byte(r.IntN(256)), byte(r.IntN(256))})
		return netip.PrefixFrom(a, 8+r.IntN(25)).Masked()
	}
	for range 2000 {
		var outer []Prefix
		for range 1 + r.IntN(8) {
			p := prefix()
			if p.Bits() < 12 && r.IntN(4) > 0 {
				continue
			}
			outer = append(outer, Prefix{p})
		}
		p := prefix()
		want := slices.ContainsFunc(outer, func(o Prefix) bool { return o.Overlaps(p) })
		if got := meets(widest(outer), p); got != want {
			t.Fatalf("meets(%v, %v) is %v", outer, p, got)
		}
	}
}
