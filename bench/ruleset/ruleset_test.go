package ruleset

import (
	"reflect"
	"testing"
)

func TestMake(t *testing.T) {
	for _, f := range Families {
		for _, six := range []bool{false, true} {
			a, err := Make(f, 2000, 7, six)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := Make(f, 2000, 7, six)
			if !reflect.DeepEqual(a, b) {
				t.Errorf("%s: the same seed gives other rules", f)
			}
			if c, _ := Make(f, 2000, 8, six); reflect.DeepEqual(a, c) {
				t.Errorf("%s: another seed gives the same rules", f)
			}
			trace := Trace(a, 500, 3)
			for i, p := range trace {
				if p.Src.Is6() != six || p.Dst.Is6() != six {
					t.Fatalf("%s: packet %d is from %s to %s", f, i, p.Src, p.Dst)
				}
			}
			wild := 0
			for _, m := range a {
				if len(m.Src) == 0 {
					wild++
				}
			}
			if low, high := map[Family]int{ACL: 250, FW: 480, IPC: 80}[f], map[Family]int{ACL: 450, FW: 800, IPC: 280}[f]; wild < low || wild > high {
				t.Errorf("%s: %d of 2000 sources are wild", f, wild)
			}
		}
	}
	if _, err := Make("dns", 1, 1, false); err == nil {
		t.Error("a family that is not there was made")
	}
}
