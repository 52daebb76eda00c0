package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestPatience: what is long once, or now and then, takes no module out of service; what is
// long each time does.
func TestPatience(t *testing.T) {
	var x excess
	for range 100 {
		for _, took := range []time.Duration{3 * longest, 2 * longest, longest} {
			if x.add(took, longest) {
				t.Fatal("two long events in a row were too many")
			}
		}
	}
	for i, took := range []time.Duration{3 * longest, 2 * longest, 4 * longest} {
		if x.add(took, longest) != (i == patience-1) {
			t.Errorf("after %d long events: %+v", i+1, x)
		}
	}
	if x.least != 2*longest {
		t.Errorf("the least of them: %s", x.least)
	}

	m := &module{spec: onpath.WasmModule{Budget: onpath.Duration(20 * time.Microsecond)}}
	thousand := func(took time.Duration) (err error) {
		for i := range 16 {
			one := 64 * time.Microsecond
			if i == 5 {
				one = took
			}
			if e := m.budget(64, one); e != nil {
				err = e
			}
		}
		return err
	}
	for range 100 { // an interrupt in each second thousand
		for _, took := range []time.Duration{50 * time.Millisecond, 64 * time.Microsecond} {
			if err := thousand(took); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range patience {
		err := thousand(50 * time.Millisecond)
		if (err != nil) != (i == patience-1) || err != nil && !strings.Contains(err.Error(), "its budget is 20µs") {
			t.Errorf("after %d slow thousands: %v", i+1, err)
		}
	}
}
