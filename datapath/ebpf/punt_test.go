package ebpf

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

// queryFrame is a Query of GIST's from client n.
func queryFrame(n uint32) []byte {
	f := between(n, 17, 270, 0, false)
	message := make([]byte, 24)
	binary.BigEndian.PutUint32(message, 0x4e04bda5)
	message[4], message[5], message[10] = 1, 32, 0x80
	binary.BigEndian.PutUint16(message[8:], 32704)
	f = append(f[:42], message...)
	binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
	binary.BigEndian.PutUint16(f[38:], uint16(len(f)-34))
	binary.BigEndian.PutUint16(f[24:], 0)
	binary.BigEndian.PutUint16(f[24:], ^sum16(f[14:34]))
	return f
}

// TestPuntRate: of 100,000 Queries as fast as they come the agent is given what the rate
// allows, whole and with where they came in; other packets are not affected.
func TestPuntRate(t *testing.T) {
	t.Parallel()
	b := newBench(t, 0, stateUp)
	if err := b.c.Maps["stages"].Put(stagePunt, b.c.Programs[puntProgram]); err != nil {
		t.Fatal(err)
	}
	const rate = 2000
	v := puntValue{Ifindex: 1, NSLPID: 32704, Interval: uint64(time.Second) / rate, Burst: uint64(time.Second / 10)}
	v.Until = uint32(monotonic()/uint64(time.Second)) + 60
	b.put("punts", uint32(0), v)
	verdict, out := b.run(queryFrame(1), 0)
	p, ok := puntedOf(append(make([]byte, vnetHeader), out...))
	if verdict != verdictRedirect || !ok || p.Vport != benchEdge || p.Device != 1 || !bytes.Equal(p.Packet, queryFrame(1)[14:]) {
		t.Fatalf("verdict %d, %+v", verdict, p)
	}
	began := time.Now()
	given := 1
	last, ran := began, time.Duration(0) // without what a longer pause adds to the allowance: nothing
	for n := range uint32(100_000) {
		if n%100 == 0 {
			now := time.Now()
			ran, last = ran+min(now.Sub(last), time.Second/10), now
		}
		if v, _ := b.run(queryFrame(n), 0); v == verdictRedirect {
			given++
		}
		if n%1000 == 0 {
			b.pass(between(n, 6, 80, 0x02, false))
		}
	}
	took := time.Since(began)
	most := rate/10 + int(took.Seconds()*rate) + 2
	if given > most || given < (rate/10+int(ran.Seconds()*rate))/2 {
		t.Errorf("in %s the agent was given %d packets, must be about %d", took, given, most)
	}
	var s puntState
	if err := b.c.Maps["punt_states"].Lookup(uint32(0), &s); err != nil || s.Taken != uint64(given) || s.Refused != uint64(100_001-given) {
		t.Errorf("%+v, %v", s, err)
	}
	v.Until = 1 // nobody reads
	b.put("punts", uint32(0), v)
	if verdict, _ := b.run(queryFrame(1), 0); verdict == verdictRedirect || verdict == 2 {
		t.Errorf("while nobody reads the verdict is %d", verdict)
	}
}
