package nslp

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/onpath/onpath/signal/gist"
)

// TestFloodOfQueries: 100,000 forged Queries, as many as a node's data path would hand over
// in 50 s, leave nothing behind.
func TestFloodOfQueries(t *testing.T) {
	s := newSimulation(t, 1)
	n := s.nodes[s.addresses()[0]]
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range uint32(100_000) {
		from := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
		mri, session := gist.Toward(from, simUser), gist.SessionID{byte(i), byte(i >> 8), byte(i >> 16)}
		q := &gist.Message{Hops: 32, NSLPID: gist.NSLPID, Type: gist.Query, QMode: true, Source: true, Reply: true, MRI: &mri, Session: &session,
			NLI: &gist.NLI{Peer: "forged", TTL: 64, Valid: 30e9, Address: from}, QueryCookie: make([]byte, 16), Payload: make([]byte, 96)}
		b := q.Append(nil)
		sent := 0
		for _, o := range n.node.Receive(s.now, gist.Packet{
			From: netip.AddrPortFrom(from, gist.Port), To: netip.AddrPortFrom(simUser, gist.Port), Payload: b}) {
			sent += len(o.Send.Payload)
		}
		if sent == 0 || sent > len(b) {
			t.Fatalf("%d octets in answer to %d", sent, len(b))
		}
	}
	if after := heap(); after > before+1<<20 || !n.node.Due().IsZero() {
		t.Errorf("memory grows from %d to %d bytes; something is due: %t", before, after, !n.node.Due().IsZero())
	}
}
