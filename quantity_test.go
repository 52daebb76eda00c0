package onpath

import "testing"

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
