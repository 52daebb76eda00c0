// Package trial tries the network between two machines: which packets arrive there, how
// much, and how soon an answer comes (GNFC §II and IV).
//
// One machine receives and one sends. All packets of a trial carry its word, which nobody
// else knows, so others' packets are not counted and nobody else is answered.
package trial

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/onpath/onpath"
)

// Machine is where a part of a trial takes place.
type Machine struct {
	NetNS string // path of the network namespace; "": the process's own
}

// wordLength is that of the word, in bytes.
const wordLength = 16

// overhead is the time that a part may take beyond what was asked for.
const overhead = 20 * time.Second

// word is the trial's.
func word(p *Part) ([]byte, error) {
	w, err := hex.DecodeString(p.Word)
	if err != nil || len(w) != wordLength {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the word of a trial has %d bytes, in hexadecimal digits", wordLength)
	}
	return w, nil
}

// Send is the sender's part.
func (m Machine) Send(ctx context.Context, p Part) (*Result, error) {
	w, err := word(&p)
	if err != nil {
		return nil, err
	}
	if !p.Address.IsValid() {
		return nil, onpath.Errorf(onpath.CodeInvalid, "a trial's sender has no address to send to")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.For)+overhead+time.Duration(p.Count)*echoWait)
	defer cancel()
	switch {
	case p.Kind == Network:
		return m.sendEach(ctx, p, w)
	case p.Kind == Throughput && p.Protocol == ByTCP:
		return m.sendStream(ctx, p, w)
	case p.Kind == Throughput && p.Protocol == ByUDP:
		return m.sendDatagrams(ctx, p, w)
	case p.Kind == RoundTrip && p.Protocol == ByICMP:
		return m.echo(ctx, p)
	case p.Kind == RoundTrip && p.Protocol == ByUDP:
		return m.echoUDP(ctx, p, w)
	}
	return nil, onpath.Errorf(onpath.CodeUnsupported, "this agent knows no trial %s by %s", p.Kind, p.Protocol)
}

// Receive is the receiver's part: it tells its ports, and what it got once over is closed.
func (m Machine) Receive(ctx context.Context, p Part, ports func(Ports) error, over <-chan struct{}) (
	*Result, error) {
	w, err := word(&p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.For)+2*overhead+time.Duration(p.Count)*echoWait)
	defer cancel()
	r := &receiver{part: p, word: w}
	if err := r.open(m); err != nil {
		return nil, errors.Join(err, r.close())
	}
	got := r.run(ctx)
	err = ports(r.ports())
	if err == nil {
		select {
		case <-over:
			sleep(ctx, inFlight)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	err = errors.Join(err, r.close())
	return got(), err
}

// inFlight is how long packets may still be on the way when the sender is done.
const inFlight = 300 * time.Millisecond

// sort is one sort of packet of a network trial.
type sort struct {
	name     string
	protocol uint8
	size     int // of the whole packet; 0: as short as it can be
	foreign  bool
	tunnel   bool
	header   []byte // before the word
}

// The numbers of protocols.
const (
	protocolICMP   = 1
	protocolUDP    = 17
	protocolGRE    = 47
	protocolESP    = 50
	protocolICMPv6 = 58
	protocolOther  = 253 // for experiments (RFC 3692)
)

// sizes of packets that are tried: what IPv6 needs at least, what is left beside
// the headers of tunnels, Ethernet's, and jumbo frames.
var sizes = []int{1280, 1350, 1400, 1420, 1450, 1480, 1500, 4000, 8900, 9000}

// sorts are all of them; a packet carries its index.
func sorts() []sort {
	list := []sort{
		{name: UDP, protocol: protocolUDP},
		{name: TunnelPort, protocol: protocolUDP, tunnel: true},
		{name: ICMP, protocol: protocolICMP},
		{name: GRE, protocol: protocolGRE, header: []byte{0, 0, 0x65, 0x58}},          // of Ethernet (RFC 2784, 7637)
		{name: ESP, protocol: protocolESP, header: []byte{0, 1, 0, 0, 0, 0, 0, 0x01}}, // index and number
		{name: Other, protocol: protocolOther},
		{name: Foreign, protocol: protocolUDP, foreign: true},
	}
	for _, s := range sizes {
		list = append(list, sort{name: fmt.Sprintf("%s %d", Size, s), protocol: protocolUDP, size: s})
	}
	return list
}

// Foreign sources are addresses that no machine has (RFC 5737, 3849).
var (
	foreignSource4 = netip.MustParseAddr("192.0.2.123")
	foreignSource6 = netip.MustParseAddr("2001:db8::7b")
)

// marked is the word with the index of a sort of packet, or a number, behind it.
func marked(word []byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(bytes.Clone(word), number)
}

// mark finds the word in a packet, and what stands behind it.
func mark(b, word []byte) (number uint64, ok bool) {
	i := bytes.Index(b, word)
	if i < 0 || len(b) < i+wordLength+8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[i+wordLength:]), true
}
