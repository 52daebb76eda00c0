package onpath

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

// TestRounded: amounts for people have three digits and a unit, whatever divides them.
func TestRounded(t *testing.T) {
	for s, want := range map[Size]string{
		0: "0", 512: "512", 1023: "0.999Ki", 1536: "1.5Ki", 256 << 20: "256Mi", 1 << 30: "1Gi", 1049450956 << 10: "0.977Ti", 123456789: "118Mi", 999800: "976Ki",
	} {
		if got := s.Rounded(); got != want {
			t.Errorf("%d bytes: %s, want %s", int64(s), got, want)
		}
	}
	for r, want := range map[Rate]string{
		0: "0bit", 64_000: "64kbit", 123_456_789: "123Mbit", 999_800: "1Mbit", 1_500_000_000: "1.5Gbit", 40e12: "40Tbit",
	} {
		if got := r.Rounded(); got != want {
			t.Errorf("%d bit/s: %s, want %s", int64(r), got, want)
		}
	}
}

// TestPortZero: a port of 0 is refused, as it would stand for none.
func TestPortZero(t *testing.T) {
	for _, data := range []string{`{"tcp": 0}`, `{"tcp": "0"}`, `{"tcp": 65536}`, `{"tcp": -1}`} {
		var h Health
		if err := json.Unmarshal([]byte(data), &h); err == nil {
			t.Errorf("%s is taken as %+v", data, h)
		}
	}
	var h Health
	if err := json.Unmarshal([]byte(`{"tcp": 3128}`), &h); err != nil || h.TCP != 3128 {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestUplinkOnLoopback: the loopback device is no uplink.
func TestUplinkOnLoopback(t *testing.T) {
	n := &Node{TypeMeta: TypeMeta{APIVersion: APIVersion, Kind: KindNode}, Metadata: Metadata{Name: "n"}}
	n.Spec.Cloudlet, n.Spec.Underlay.Address = "c", netip.MustParseAddr("10.0.0.1")
	n.Spec.Uplinks = []Uplink{{Name: "u", Device: "lo", Attach: AttachRouter}}
	if err := n.Validate(); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("got %v", err)
	}
}
