// Package ipfix writes flow records as IPFIX messages (RFC 7011) with the elements
// of IANA's registry, over UDP.
package ipfix

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Record is one key with what was counted for it in an interval. Parts that are not
// valid or zero were not part of the key.
type Record struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Protocol         uint8
	Family           uint8 // 4 or 6
	Reverse          bool
	Typed            bool   // ICMP: DstPort is its type and code
	Packets, Bytes   uint64 // since the last record of the key
	Start, End       time.Time
}

// Numbers of IANA's registry of information elements.
const (
	octetDeltaCount          = 1
	packetDeltaCount         = 2
	protocolIdentifier       = 4
	sourceTransportPort      = 7
	sourceIPv4Address        = 8
	destinationTransportPort = 11
	destinationIPv4Address   = 12
	sourceIPv6Address        = 27
	destinationIPv6Address   = 28
	icmpTypeCodeIPv4         = 32
	flowDirection            = 61
	icmpTypeCodeIPv6         = 139
	flowStartMilliseconds    = 152
	flowEndMilliseconds      = 153
)

type field struct{ id, length uint16 }

// template is a kind of records: of one IP version, and of messages of ICMP, or of all else.
type template struct {
	id     uint16
	family uint8
	typed  bool
}

var templates = []template{{256, 4, false}, {257, 6, false}, {258, 4, true}, {259, 6, true}}

func (t *template) fields() []field {
	out, icmp := []field{{sourceIPv4Address, 4}, {destinationIPv4Address, 4}}, field{icmpTypeCodeIPv4, 2}
	if t.family == 6 {
		out, icmp = []field{{sourceIPv6Address, 16}, {destinationIPv6Address, 16}}, field{icmpTypeCodeIPv6, 2}
	}
	out = append(out, field{sourceTransportPort, 2}, field{destinationTransportPort, 2})
	if t.typed {
		out = append(out, icmp)
	}
	return append(out, field{protocolIdentifier, 1}, field{flowDirection, 1}, field{packetDeltaCount, 8},
		field{octetDeltaCount, 8}, field{flowStartMilliseconds, 8}, field{flowEndMilliseconds, 8})
}

const (
	protocolICMP   = 1
	protocolICMPv6 = 58
)

// Set and template numbers.
const (
	templateSet = 2
	headerSize  = 16
	// maxMessage fits the payload of UDP in 1,500 bytes of IPv6.
	maxMessage = 1400
)

// Encoder numbers the messages of one stream (RFC 7011 §3.1).
type Encoder struct {
	// Domain is the observation domain: whoever observes.
	Domain   uint32
	sequence uint32 // data records before
}

// Encode makes the messages of the records. Each carries the templates: over UDP
// any may be lost (RFC 7011 §8.4).
func (e *Encoder) Encode(at time.Time, records []Record) [][]byte {
	var out [][]byte
	for i := range templates {
		t := &templates[i]
		var list []Record
		for _, r := range records {
			if r.Family == t.family && r.Typed == t.typed {
				list = append(list, r)
			}
		}
		for len(list) > 0 {
			n := min(len(list), (maxMessage-headerSize-len(describe())-4)/t.recordSize())
			out = append(out, e.message(at, t, list[:n]))
			list = list[n:]
		}
	}
	return out
}

func (t *template) recordSize() int {
	n := 0
	for _, f := range t.fields() {
		n += int(f.length)
	}
	return n
}

// describe is the set of all templates.
func describe() []byte {
	var body []byte
	for _, t := range templates {
		list := t.fields()
		body = binary.BigEndian.AppendUint16(body, t.id)
		body = binary.BigEndian.AppendUint16(body, uint16(len(list)))
		for _, f := range list {
			body = binary.BigEndian.AppendUint16(body, f.id)
			body = binary.BigEndian.AppendUint16(body, f.length)
		}
	}
	return set(templateSet, body)
}

func set(id uint16, body []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, id)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(body)))
	return append(b, body...)
}

func (e *Encoder) message(at time.Time, t *template, records []Record) []byte {
	var body []byte
	for _, r := range records {
		body = r.append(body)
	}
	data := set(t.id, body)
	b := binary.BigEndian.AppendUint16(nil, 10) // the version
	b = binary.BigEndian.AppendUint16(b, uint16(headerSize+len(describe())+len(data)))
	b = binary.BigEndian.AppendUint32(b, uint32(at.Unix()))
	b = binary.BigEndian.AppendUint32(b, e.sequence)
	b = binary.BigEndian.AppendUint32(b, e.Domain)
	e.sequence += uint32(len(records))
	return append(append(b, describe()...), data...)
}

func (r *Record) append(b []byte) []byte {
	for _, a := range []netip.Addr{r.Src, r.Dst} {
		switch {
		case r.Family == 4 && a.Is4():
			b = append(b, a.AsSlice()...)
		case r.Family == 4:
			b = append(b, 0, 0, 0, 0)
		case a.IsValid():
			x := a.As16()
			b = append(b, x[:]...)
		default:
			b = append(b, make([]byte, 16)...)
		}
	}
	src, dst := r.SrcPort, r.DstPort
	if !r.Typed && (r.Protocol == protocolICMP || r.Protocol == protocolICMPv6) {
		src, dst = 0, 0 // many collectors read type and code of ICMP there
	}
	b = binary.BigEndian.AppendUint16(b, src)
	b = binary.BigEndian.AppendUint16(b, dst)
	if r.Typed {
		b = binary.BigEndian.AppendUint16(b, dst)
	}
	direction := byte(0) // ingress
	if r.Reverse {
		direction = 1
	}
	b = append(b, r.Protocol, direction)
	b = binary.BigEndian.AppendUint64(b, r.Packets)
	b = binary.BigEndian.AppendUint64(b, r.Bytes)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Start.UnixMilli()))
	return binary.BigEndian.AppendUint64(b, uint64(r.End.UnixMilli()))
}
