package ebpf_test

import (
	"context"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
)

const fewVport = onpath.VportID(77)

// full is a driver with n flow entries, one in a thousand of them fewVport's.
func full(t testing.TB, n int) *ebpf.Driver {
	w := newWorld(t)
	ns := w.ns("node")
	o := ebpf.Options{Name: w.name, Flows: 2 * n}
	var d *ebpf.Driver
	w.in(ns, func() (err error) {
		d, err = ebpf.New(o)
		return err
	})
	t.Cleanup(func() {
		d.Close()
		w.in(ns, func() error { return ebpf.Remove(context.Background(), o) })
	})
	w.must(d.FillFlows(n, fewVport))
	return d
}

// TestCountersDoNotWalk: who reads counters gets the flow entries as a round over them has
// counted them last; the driver's loop does so by itself.
func TestCountersDoNotWalk(t *testing.T) {
	d := full(t, 5000)
	flows := func() uint64 {
		c, err := d.Counters(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return c.Flows
	}
	if n := flows(); n != 0 {
		t.Errorf("%d flow entries were counted for a reader", n)
	}
	if err := d.CountFlows(); err != nil || flows() != 5000 {
		t.Errorf("%d flow entries, must be 5000: %v", flows(), err)
	}
	if err := d.FillFlows(6000, fewVport); err != nil || flows() != 5000 {
		t.Errorf("%d flow entries, must be 5000 as counted last: %v", flows(), err)
	}
	if err := d.Apply(t.Context(), &onpath.DatapathConfig{Node: "n", Generation: 1}); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(time.Minute); flows() != 6000; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("after ten seconds %d flow entries are counted, must be 6000", flows())
		}
	}
}

// BenchmarkFlows walks 200,000 entries, as a node does that waits for instances to drain.
func BenchmarkFlows(b *testing.B) {
	const n = 200_000
	d := full(b, n)
	for _, x := range []struct {
		name   string
		filter onpath.FlowFilter
		want   int
	}{
		{"whole", onpath.FlowFilter{}, n},
		{"bare", onpath.FlowFilter{Bare: true}, n},
		{"of-one-vport", onpath.FlowFilter{Vport: fewVport}, n / 1000},
		{"of-one-vport-bare", onpath.FlowFilter{Vport: fewVport, Bare: true}, n / 1000},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				got := 0
				err := d.Flows(b.Context(), x.filter, func(onpath.FlowEntry) bool { got++; return true })
				if err != nil || got != x.want {
					b.Fatalf("%d entries, error %v", got, err)
				}
			}
		})
	}
}
