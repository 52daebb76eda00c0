package lab

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

const faultLab = `
name: faults
hosts:
  a: {interfaces: {eth0: [10.0.0.1/24]}}
  b: {interfaces: {eth0: [10.0.0.2/24]}}
  c: {interfaces: {eth0: [10.1.0.1/24]}}
  d: {interfaces: {eth0: [10.1.0.2/24]}}
links:
- {a: "a:eth0", b: "b:eth0"}
- {a: "c:eth0", b: "d:eth0", delay: 1ms}
`

// TestCut measures a cut that ends by itself, and that a host whose links are
// cut is silent.
func TestCut(t *testing.T) {
	l := up(t, parse(t, faultLab), Options{})
	link, err := l.FindLink("b:eth0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.FindLink("nosuch:eth0"); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("a link that is none: %v", err)
	}
	g, err := l.StartGauge(GaugeSpec{From: "a", To: "b", Flows: 2, PerSecond: 500})
	if err != nil {
		t.Fatal(err)
	}
	more := func(since int) func() error {
		return func() error {
			if n := g.Delivered(); n < since+100 {
				return fmt.Errorf("%d packets were delivered, %d before", n, since)
			}
			return nil
		}
	}
	eventually(t, more(0))
	const span = 250 * time.Millisecond
	if err := l.Cut(link, span); err != nil {
		t.Fatal(err)
	}
	time.Sleep(span)
	eventually(t, more(g.Delivered()))
	r, err := g.Stop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pause := time.Duration(0) // the longest in which the machine let nothing be sent
	for _, sent := range g.sent {
		for i := 1; i < len(sent); i++ {
			pause = max(pause, time.Duration(sent[i]-sent[i-1]))
		}
	}
	if len(r.Flows) != 2 || r.Lost == 0 || time.Duration(r.Blackout) < span-10*time.Millisecond-pause {
		t.Errorf("a cut of %s gave %+v, and nothing was sent for %s at most", span, r, pause)
	}
	for _, f := range r.Flows {
		if f.Silent || f.Lost == f.Sent {
			t.Errorf("the flow did not go on: %+v", f)
		}
	}
	if _, err := l.KillHost("nosuch", time.Second); onpath.CodeOf(err) != onpath.CodeNotFound {
		t.Errorf("killing a host that is none: %v", err)
	}
	sleeper := l.Command("b", "sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	for inside := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // what enters the host becomes it
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", sleeper.Process.Pid))
		if string(name) == "sleep\n" {
			break
		}
		if err != nil || time.Now().After(inside) {
			t.Fatalf("the process is %q: %v", name, err)
		}
	}
	killed, err := l.KillHost("b", time.Minute)
	if err != nil || len(killed) != 1 || killed[0] != sleeper.Process.Pid {
		t.Errorf("killed %v (%v), want %d", killed, err, sleeper.Process.Pid)
	}
	if err := sleeper.Wait(); err == nil {
		t.Error("the process ended well")
	}
	if g, err = l.StartGauge(GaugeSpec{From: "a", To: "b"}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if n := g.Delivered(); n > 0 {
		t.Errorf("a dead host received %d packets", n)
	}
	if _, err := l.KillHost("b", 0); err != nil { // its power comes back
		t.Fatal(err)
	}
	eventually(t, func() error {
		if g.Delivered() == 0 {
			return errors.New("a host that is back receives nothing")
		}
		return nil
	})
	if _, err := g.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestDelay makes an emulated link slower for a time.
func TestDelay(t *testing.T) {
	l := up(t, parse(t, faultLab), Options{})
	plain, _ := l.FindLink("a:eth0")
	if err := l.Delay(t.Context(), plain, time.Millisecond, time.Second); onpath.CodeOf(err) != onpath.CodeUnsupported {
		t.Errorf("a delay on a plain link: %v", err)
	}
	link, err := l.FindLink("c:eth0-d:eth0")
	if err != nil {
		t.Fatal(err)
	}
	trip := func() time.Duration {
		begin := time.Now()
		run(t, l, "c", "ping", "-c1", "-W30", "10.1.0.2")
		return time.Since(begin)
	}
	trip() // neighbours
	if err := l.Delay(t.Context(), link, 200*time.Millisecond, 5*time.Minute); err != nil {
		t.Fatal(err)
	}
	if d := trip(); d < 400*time.Millisecond {
		t.Errorf("a round trip of %s with 200ms more each way", d)
	}
	if err := l.Delay(t.Context(), link, 200*time.Millisecond, 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if d := trip(); d >= 400*time.Millisecond {
			return fmt.Errorf("the delay does not end: a round trip of %s", d)
		}
		return nil
	})
}

func TestCheckFlow(t *testing.T) {
	ms := func(list ...int64) (out []int64) {
		for _, v := range list {
			out = append(out, v*1e6)
		}
		return out
	}
	got := func(pairs ...int64) map[uint32]int64 {
		out := map[uint32]int64{}
		for i := 0; i < len(pairs); i += 2 {
			out[uint32(pairs[i])] = pairs[i+1] * 1e6
		}
		return out
	}
	for _, c := range []struct {
		name     string
		sent     []int64
		got      map[uint32]int64
		blackout int64 // ms
		gap      int64
		lost     int
		silent   bool
	}{
		{"nothing lost", ms(0, 10, 20), got(0, 1, 1, 11, 2, 21), 1, 0, 0, false},
		{"a hole", ms(0, 10, 20, 30), got(0, 1, 3, 31), 21, 20, 2, false},
		{"held back, not lost", ms(0, 10, 20, 30), got(0, 1, 1, 31, 2, 31, 3, 31), 21, 0, 0, false},
		{"the sender paused", ms(0, 500, 510), got(0, 1, 1, 501, 2, 511), 1, 0, 0, false},
		{"silent at the end", ms(0, 10, 20, 90), got(0, 1), 80, 80, 3, true},
		{"overtaken", ms(0, 10, 20), got(0, 1, 2, 21, 1, 22), 11, 10, 0, false},
	} {
		f := checkFlow(c.sent, c.got)
		if int64(f.Blackout) != c.blackout*1e6 || int64(f.Gap) != c.gap*1e6 || f.Lost != c.lost || f.Silent != c.silent {
			t.Errorf("%s: %+v", c.name, f)
		}
	}
}
