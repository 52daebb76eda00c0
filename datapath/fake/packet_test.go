package fake

import "testing"

func FuzzParse(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 16, 44, 64}, make([]byte, 48)...))
	f.Add(append([]byte{0x45, 0, 0, 64, 0, 0, 0, 0, 64, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 4, 0, 0, 0, 0, 0, 0,
		0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0, 0, 5, 6, 7, 8, 1, 2, 3, 4}, make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if fr, ok := parseFrame(b); ok && len(fr.tags) > 2 {
			t.Fatal("more than two tags")
		}
		h := parse(b)
		if h.verdict == malformed {
			return
		}
		if h.l4 > h.length || h.length > len(b) {
			t.Fatalf("transport at %d of %d in %d bytes", h.l4, h.length, len(b))
		}
		c := append([]byte(nil), b[:h.length]...)
		clamp(c, &h, 1300)
		if h.ttl > 0 {
			decrement(c, &h)
		}
		setAddress(c, &h, true, h.tuple.Dst)
		setAddress(c, &h, false, h.tuple.Src)
		if h.verdict == fine && hasPorts(h.protocol) {
			setPort(c, &h, true, 1)
			setPort(c, &h, false, 2)
		}
		if again := parse(c); again.verdict != h.verdict && h.tuple.Src.IsValid() {
			t.Fatalf("edited packet parses as %v, was %v", again.verdict, h.verdict)
		}
	})
}
