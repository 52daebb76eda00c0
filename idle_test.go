package onpath

import (
	"testing"
	"time"
)

func TestIdle(t *testing.T) {
	i := Idle{UDP: Duration(time.Hour)}.OrDefault()
	for _, c := range []struct {
		protocol                uint8
		oneWay, closing, closed bool
		want                    time.Duration
	}{
		{6, false, false, false, 2*time.Hour + 4*time.Minute},
		{6, true, false, false, 4 * time.Minute},
		{6, false, true, false, 4 * time.Minute},
		{6, true, true, true, 2 * time.Minute},
		{17, true, true, true, time.Hour},
		{136, false, false, false, time.Hour},
		{1, false, false, false, time.Minute},
		{58, false, false, false, time.Minute},
		{47, false, false, false, 10 * time.Minute},
	} {
		if got := i.For(c.protocol, c.oneWay, c.closing, c.closed); got != c.want {
			t.Errorf("protocol %d rests for %s, must rest for %s", c.protocol, got, c.want)
		}
	}
	if DefaultIdle.UDP != Duration(5*time.Minute) {
		t.Error("the defaults were changed")
	}
	short := Idle{TCP: Duration(time.Minute)}.OrDefault()
	if short.TCPTransitory != short.TCP || short.TCPClosed != short.TCP {
		t.Errorf("with tcp: 1m the others are %+v", short)
	}
	both := Idle{TCP: 1, UDP: 5}.Longest(Idle{TCP: 3, ICMP: 2})
	if want := (Idle{TCP: 3, UDP: 5, ICMP: 2}); both != want {
		t.Errorf("the longest of two are %+v, must be %+v", both, want)
	}
}
