package datapathtest

import (
	"time"

	"github.com/onpath/onpath"
)

// matrix: new flows are shared by the weights for the instance that they come
// from, within a tenth, from the edge too; both directions meet the same
// instances, whichever speaks first.
func matrix(b *testbed) {
	u := []*instance{b.instance("u0", gateway), b.instance("u1", "n2")}
	v := []*instance{b.instance("v0", gateway), b.instance("v1", "n2"), b.instance("v2", sideNode)}
	rows := [][]uint32{{1, 0, 3}, {0, 2, 1}}
	c := &chain{path: 1, match: toServer(), elements: []*element{
		{instances: u, rows: []onpath.WeightRow{{Weights: []uint32{1, 2}}}},
		{instances: v, rows: []onpath.WeightRow{{From: u[0].key, Weights: rows[0]}, {From: u[1].key, Weights: rows[1]}}},
	}}
	b.apply(&layout{chains: []*chain{c}, instances: append(append([]*instance{}, u...), v...)})

	const n = 9000
	ts := flows(0, n)
	first := b.spread(ts, false, u...)
	second := b.passOn(first, false, v...)
	came := map[[2]*instance]int{}
	for t := range second {
		came[[2]*instance{first[t], second[t]}]++
	}
	for i, share := range []int{n / 3, 2 * n / 3} {
		total := rows[i][0] + rows[i][1] + rows[i][2]
		for j := range v {
			want := share * int(rows[i][j]) / int(total)
			if got := came[[2]*instance{u[i], v[j]}]; got < want*9/10 || got > want*11/10 {
				b.t.Errorf("from %s to %s came %d of %d flows, must be within a tenth of %d", u[i].name, v[j].name, got, n, want)
			}
		}
	}
	b.finishFirstAt(second, 2)
	for _, t := range ts[:50] {
		b.backward(t, second[t], first[t])
		b.forward(t, first[t], second[t])
	}

	for _, t := range flows(n, 20) { // begun by the other side
		p := answerTo(t).bytes()
		b.send(gateway, serverNet, p)
		at := b.whereTo(p, true, v)
		p = b.cross(hop{at: at, reverse: true}, p)
		before := b.whereTo(p, true, u)
		p = withTTL(b.cross(hop{at: before, reverse: true}, p), 1)
		b.expect(gateway, clientNet, p)
		b.forward(t, before, at)
		b.backward(t, at, before)
	}
}

// passOn lets the first packet of each flow come out of the instance that it came
// to, and finds out to which of others it goes on.
func (b *testbed) passOn(met map[onpath.Tuple]*instance, reverse bool, among ...*instance) map[onpath.Tuple]*instance {
	b.t.Helper()
	sent, next := map[onpath.Tuple][]byte{}, map[onpath.Tuple]*instance{}
	for t, i := range met {
		_, out := hop{at: i, reverse: reverse}.sides()
		sent[t] = withTTL(newPacket(t).bytes(), 1)
		b.send(i.node, out, sent[t])
	}
	for until := time.Now().Add(patience); len(next) < len(met) && time.Now().Before(until); {
		for _, i := range among {
			b.gather(i, reverse, sent, next)
		}
	}
	if len(next) != len(met) {
		b.t.Fatalf("of %d flows %d went on to an instance", len(met), len(next))
	}
	return next
}

// whereTo waits until one of the instances has got the packet p, which it keeps
// for cross.
func (b *testbed) whereTo(p []byte, reverse bool, among []*instance) *instance {
	b.t.Helper()
	t := tupleOf(p)
	var at *instance
	b.eventually("an instance that got the packet", func() bool {
		for _, i := range among {
			in, _ := hop{at: i, reverse: reverse}.sides()
			for _, e := range b.flows(i.node, onpath.FlowFilter{Tuple: &t}) {
				if e.Tuple == t && onpath.DeviceName(e.Vport) == in && e.Kind == onpath.NextPending {
					at = i
				}
			}
		}
		return at != nil
	})
	return at
}
