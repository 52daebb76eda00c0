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

// inBatches is a context whose state is asked for with each batch of entries.
type inBatches struct {
	context.Context
	do func()
}

func (c inBatches) Err() error {
	c.do()
	return c.Context.Err()
}

// TestCountersLetOthersIn: while all flow entries are counted the driver does other things.
func TestCountersLetOthersIn(t *testing.T) {
	d := full(t, 5000)
	batches := 0
	c, err := d.Counters(inBatches{t.Context(), func() {
		batches++
		done := make(chan struct{})
		go d.Locked(func() { close(done) })
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Fatal("who counts flow entries keeps all others out of the driver")
		}
	}})
	if err != nil || c.Flows != 5000 || batches < 5 {
		t.Errorf("%d flow entries in %d batches, error %v", c.Flows, batches, err)
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
