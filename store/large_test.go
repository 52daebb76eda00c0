package store

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/onpath/onpath"
)

// TestEncodeManyHosts: 100,000 scattered addresses fit into a store, and are the same when
// they are read again; what does not fit is refused before.
func TestEncodeManyHosts(t *testing.T) {
	hosts := func(n int, six bool) *onpath.Hosts {
		h := &onpath.Hosts{Metadata: onpath.Metadata{Name: "many", Tenant: "default"}}
		h.TypeMeta = onpath.TypeMeta{APIVersion: onpath.APIVersion, Kind: onpath.KindHosts}
		r := rand.New(rand.NewPCG(1, 1))
		for range n {
			a := netip.AddrFrom4([4]byte{1 + byte(r.IntN(100)), byte(r.Int()), byte(r.Int()), byte(r.Int())})
			if six {
				b := a.As16()
				b[0], b[1], b[4], b[5], b[10], b[11] = 0x20, byte(r.Int()), byte(r.Int()), byte(r.Int()), byte(r.Int()), byte(r.Int())
				a = netip.AddrFrom16(b)
			}
			h.Spec.Addresses = append(h.Spec.Addresses, onpath.Prefix{Prefix: netip.PrefixFrom(a, a.BitLen())})
		}
		if err := h.Validate(); err != nil {
			t.Fatal(err)
		}
		return h
	}
	h := hosts(100_000, false)
	if err := onpath.CheckSize(h); err != nil {
		t.Fatal(err)
	}
	data, err := Encode(h)
	if err != nil || len(data) > MaxObject {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	t.Logf("stored in %d bytes", len(data))
	again, err := Decode(data, 7)
	if err != nil {
		t.Fatal(err)
	}
	h.Metadata.Version = 7
	if !reflect.DeepEqual(again, onpath.Object(h)) {
		t.Error("what was read is not what was written")
	}
	if err := onpath.CheckSize(hosts(100_000, true)); onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Errorf("too many IPv6 addresses: %v", err)
	}
}
