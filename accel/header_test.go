package accel

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestUnsignedUnread: nothing of a header is read that is not signed, whatever stands in it.
func TestUnsignedUnread(t *testing.T) {
	self := netip.MustParseAddr("10.1.1.1")
	h := header{client: netip.MustParseAddrPort("10.1.0.2:1"), origin: testOrigin, tenant: "acme",
		next: []netip.AddrPort{testNodes["r2"]}}
	good, err := h.encode(testSecret, self)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decode(good, testSecret, self); err != nil || got.tenant != "acme" || len(got.next) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range 20_000 {
		raw := append([]byte(nil), good...)
		switch i % 4 {
		case 0:
			raw[rng.IntN(fixedHeader-2)] ^= byte(1 + rng.IntN(255)) // its magic, version, family
		case 1:
			raw[fixedHeader+rng.IntN(len(raw)-fixedHeader)] ^= byte(1 + rng.IntN(255))
		case 2:
			raw = raw[:rng.IntN(len(raw))]
		default:
			for k := range raw[fixedHeader:] {
				raw[fixedHeader+k] = byte(rng.Uint32())
			}
		}
		if _, err := decode(raw, testSecret, self); !errors.Is(err, errUnsigned) {
			t.Fatalf("seed %d, header %d is read, and then refused: %v", seed, i, err)
		}
	}
}
