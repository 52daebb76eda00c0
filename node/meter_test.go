package node_test

import (
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/runtime/fake"
)

// TestMeters: what an instance used never falls: not when its process begins anew, nor with
// another agent; that of one that is gone stays until it is billed.
func TestMeters(t *testing.T) {
	b := newFixture(t)
	used := 5 * time.Second
	b.machine.Set(fake.Knobs{Usage: func(string) onpath.Usage { return onpath.Usage{CPU: used} }})
	r := b.run()
	web := routed("web", 16)
	web.Reservation = "evening"
	r.plan(planOf(1, web))
	r.untilState("web", onpath.InstanceReady)
	meter := func(billed ...string) (m onpath.Meter) {
		t.Helper()
		text, err := r.serve(onpath.OpMeters, onpath.MeterRequest{Billed: billed})
		must(t, err)
		var list []onpath.Meter
		must(t, json.Unmarshal([]byte(text), &list))
		if i := slices.IndexFunc(list, func(m onpath.Meter) bool { return m.UID == web.UID }); i >= 0 {
			return list[i]
		}
		return m
	}
	is := func(want time.Duration) {
		t.Helper()
		if m := meter(); m.CPU != want || m.Reservation != "evening" || m.Instance != "web" || m.Gone {
			t.Errorf("the meter is %+v, want %s", m, want)
		}
	}
	is(5 * time.Second)
	used = 2 * time.Second // another process
	is(7 * time.Second)
	r.stop()
	used = 3 * time.Second
	r = b.run()
	r.untilState("web", onpath.InstanceReady)
	is(8 * time.Second)
	used = 4 * time.Second
	r.plan(planOf(2))
	b.gone()
	b.until("its meter is final", func() bool { return meter().Gone })
	r.stop()
	r = b.run()
	if m := meter(); !m.Gone || m.CPU != 9*time.Second {
		t.Errorf("what is gone has %+v, want 9 s", m)
	}
	if m := meter(web.UID); m.UID != "" {
		t.Errorf("what is billed is still there: %+v", m)
	}
}

// TestPrepareAhead: images are made ready before the instances that a plan announces, once.
func TestPrepareAhead(t *testing.T) {
	b := newFixture(t)
	var asked atomic.Int32
	b.machine.Set(fake.Knobs{Prepare: func(context.Context, *onpath.FunctionSpec) error { asked.Add(1); return nil }})
	r := b.run()
	for generation := range 3 {
		p := planOf(uint64(generation + 1))
		p.Prepare = []onpath.FunctionSpec{routed("web", 16).Spec}
		r.plan(p)
	}
	b.until("the image is made ready", func() bool { return asked.Load() == 1 })
}

// spoofedPath counts all that an instance sends as spoofed.
type spoofedPath struct {
	*path
	packets atomic.Uint64
}

func (p *spoofedPath) Counters(context.Context) (*onpath.Counters, error) {
	n := p.packets.Load()
	return &onpath.Counters{Vports: map[onpath.VportID]onpath.VportCounters{
		16: {In: onpath.Tally{Packets: n}, Dropped: map[onpath.DropReason]uint64{onpath.DropSpoofed: n}},
	}}, nil
}

// TestSpoofedTold: the report on an instance says that most of what it sends is dropped.
func TestSpoofedTold(t *testing.T) {
	b := newFixture(t)
	p := &spoofedPath{path: b.path}
	b.edit = func(o *node.Options) { o.Datapath = p }
	r := b.run()
	r.plan(planOf(1, routed("web", 16)))
	r.untilState("web", onpath.InstanceReady)
	for range 2 {
		_, err := r.serve(onpath.OpMeters, onpath.MeterRequest{})
		must(t, err)
		p.packets.Add(30)
	}
	_, err := r.serve(onpath.OpMeters, onpath.MeterRequest{})
	must(t, err)
	list := r.Report().Instances
	if len(list) != 1 || list[0].Reason != onpath.ReasonSpoofed || list[0].State != onpath.InstanceReady || list[0].Message == "" {
		t.Errorf("reported: %+v", list)
	}
}
