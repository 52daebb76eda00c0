package fake

import "testing"

func FuzzParseFrame(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 0x81, 0, 0, 1, 0x88, 0xa8, 0, 2, 0x81, 0, 0, 3, 8, 0, 0x45})
	f.Fuzz(func(t *testing.T, b []byte) {
		if fr, ok := parseFrame(b); ok && len(fr.tags) > 2 {
			t.Fatal("more than two tags")
		}
	})
}
