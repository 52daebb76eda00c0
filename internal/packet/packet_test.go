package packet

import "testing"

func FuzzParse(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 16, 44, 64}, make([]byte, 48)...))
	f.Add(append([]byte{0x45, 0, 0, 64, 0, 0, 0, 0, 64, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 4, 0, 0, 0, 0, 0, 0,
		0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0, 5, 6, 7, 8, 1, 2, 3, 4}, make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := Parse(b)
		if h.Verdict == Malformed {
			return
		}
		if h.L4 > h.Length || h.Length > len(b) {
			t.Fatalf("transport at %d of %d in %d bytes", h.L4, h.Length, len(b))
		}
		c := append([]byte(nil), b[:h.Length]...)
		Clamp(c, &h, 1300)
		if h.TTL > 0 {
			Decrement(c, &h)
		}
		SetAddress(c, &h, true, h.Tuple.Dst)
		SetAddress(c, &h, false, h.Tuple.Src)
		if h.Verdict == Fine && HasPorts(h.Protocol) {
			SetPort(c, &h, true, 1)
			SetPort(c, &h, false, 2)
		}
		if again := Parse(c); again.Verdict != h.Verdict && h.Tuple.Src.IsValid() {
			t.Fatalf("edited packet parses as %v, was %v", again.Verdict, h.Verdict)
		}
	})
}
