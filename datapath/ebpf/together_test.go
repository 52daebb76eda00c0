package ebpf

import (
	"net/netip"
	"testing"
	"time"
)

// TestTogetherFollowsFlows: a round over all entries has the notes of where flows stay
// together say where they are, whoever chose; notes of no flow go after a while, at once
// when there are many.
func TestTogetherFollowsFlows(t *testing.T) {
	b := newBench(t, 0, stateUp)
	m := b.c.Maps[affinitiesMap]
	const now = uint64(100_000 * time.Second)
	at := func(ago time.Duration) uint32 { return uint32((now - uint64(ago)) / uint64(time.Second)) }
	forward, back := groupValue{ID: 64, Flags: groupHosts, Count: 2}, groupValue{ID: 65, Flags: groupHosts | groupReverse, Count: 2}
	for i := range uint32(2) {
		forward.Members[i], back.Members[i] = memberValue{Vport: 10 + i, Key: 100 + i}, memberValue{Vport: 20 + i, Key: 100 + i}
	}
	groups := map[uint32]groupValue{64: forward, 65: back, 66: {ID: 66, Count: 1}}
	r := &reader{edge: benchEdge, paths: map[uint16]uint32{1: 1}}
	pair := func(client string) affinityKey {
		k := benchKey(client, "10.9.0.2", 0, 0)
		return affinityKey{Hash: hashTogether(&k, groupHosts), Group: 64}
	}
	k := benchKey("10.1.0.9", "10.9.0.2", 1, 2)
	if answer := reverseOf(&k); hashTogether(&answer, groupHosts|groupReverse) != pair("10.1.0.9").Hash ||
		hashTogether(&answer, groupHosts) != pair("10.1.0.9").Hash {
		t.Error("the two directions of a flow are not of one pair")
	}
	for client, v := range map[string]affinityValue{
		"10.1.0.1": {101, at(time.Hour)},                                     // flows are at both: it stays
		"10.1.0.2": {100, at(0)},                                             // the flow is at the other one
		"10.1.0.4": {100, at(time.Second)}, "10.1.0.5": {100, at(time.Hour)}, // of no flow
	} {
		b.put(affinitiesMap, pair(client), v)
	}
	a, err := newAffinityRound(groups, m)
	if err != nil {
		t.Fatal(err)
	}
	led := func(client string, group, next uint32) {
		k := benchKey(client, "10.9.0.2", 7, 80)
		if group&1 != 0 {
			k = reverseOf(&k)
		}
		a.meet(r, &k, &flowValue{Kind: nextVport, Next: three(next), Path: 1, Group: uint8(group&63) | chosen})
	}
	led("10.1.0.1", 64, 11)
	led("10.1.0.1", 64, 10)
	led("10.1.0.2", 65, 21) // the server began it
	led("10.1.0.3", 64, 10) // nothing was noted
	if err := a.end(t.Context(), m, now); err != nil {
		t.Fatal(err)
	}
	for client, want := range map[string]uint32{"10.1.0.1": 101, "10.1.0.2": 101, "10.1.0.3": 100, "10.1.0.4": 100, "10.1.0.5": 0} {
		var v affinityValue
		if m.Lookup(pair(client), &v); v.Member != want {
			t.Errorf("flows of %s are to meet member %d, must meet %d (0: any)", client, v.Member, want)
		}
	}
	if a, err = newAffinityRound(groups, m); err != nil {
		t.Fatal(err)
	}
	led("10.1.0.1", 64, 11)
	a.stays = 0 // as in a table that fills
	if err := a.end(t.Context(), m, now); err != nil {
		t.Fatal(err)
	}
	if m.Lookup(pair("10.1.0.4"), &affinityValue{}) == nil || m.Lookup(pair("10.1.0.1"), &affinityValue{}) != nil {
		t.Error("in a table that fills, notes of nobody's stay, or those of flows go")
	}
	if a, err = newAffinityRound(groups, m); err != nil {
		t.Fatal(err)
	}
	if a.most = 2; len(a.noted) == 0 {
		t.Fatal("nothing is noted")
	}
	for _, client := range []string{"10.1.1.1", "10.1.1.2", "10.1.1.3", "10.1.0.1"} {
		led(client, 64, 11)
	}
	if _, ok := a.met[pair("10.1.0.1")]; !ok || len(a.met) != 3 {
		t.Errorf("a round remembers where %d pairs are, must 3: as many as there is room for, and the noted one", len(a.met))
	}
	if none, err := newAffinityRound(map[uint32]groupValue{66: groups[66]}, m); none != nil || err != nil {
		t.Error("a round sees to notes where no flows stay together")
	}
}

// TestTogetherHashes: the driver finds the notes of the programs.
func TestTogetherHashes(t *testing.T) {
	b := newBench(t, 0, stateUp)
	for i, flags := range []uint16{groupSource, groupHosts} {
		var g groupValue
		if err := b.c.Maps["groups"].Lookup(benchGroup, &g); err != nil {
			t.Fatal(err)
		}
		g.Flags = flags
		b.put("groups", benchGroup, g)
		f := segment(2, 0)
		f[34] = byte(i) // another port
		if v, _ := b.run(f, 0); v != verdictRedirect {
			t.Fatalf("the verdict is %d, must be %d", v, verdictRedirect)
		}
		src, dst := netip.AddrFrom4([4]byte(f[26:30])), netip.AddrFrom4([4]byte(f[30:34]))
		k := benchKey(src.String(), dst.String(), 0, 0)
		if err := b.c.Maps[affinitiesMap].Lookup(affinityKey{Hash: hashTogether(&k, flags), Group: benchGroup}, &affinityValue{}); err != nil {
			t.Errorf("flags %x: %v", flags, err)
		}
	}
}
