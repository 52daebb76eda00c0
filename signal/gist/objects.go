package gist

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// MRI says along which flow a message goes: path-coupled routing (§A.3.1.1), the only
// method that is spoken here.
type MRI struct {
	Source, Destination         netip.Addr
	SourceBits, DestinationBits uint8
	// Upstream: the message runs against the flow.
	Upstream bool
	// What else narrows the flow. Zero fields with their flag unset say nothing.
	Protocol, DSCP                    uint8
	HasProtocol, HasDSCP              bool
	FlowLabel, SPI                    uint32
	HasLabel, HasSPI                  bool
	SourcePort, DestinationPort       uint16
	HasSourcePort, HasDestinationPort bool
}

// Toward is the MRI of all that goes from one address to another.
func Toward(source, destination netip.Addr) MRI {
	return MRI{Source: source, Destination: destination, SourceBits: uint8(source.BitLen()), DestinationBits: uint8(destination.BitLen())}
}

// Inverted is the same flow, in the other direction.
func (m MRI) Inverted() MRI {
	m.Upstream = !m.Upstream
	return m
}

// Flow is the flow alone: what state is kept by.
func (m MRI) Flow() MRI {
	m.Upstream = false
	return m
}

func (m *MRI) append(b []byte) []byte {
	version := byte(4)
	if m.Source.Is6() {
		version = 6
	}
	b = append(b, 0, 0, version<<4|flag(m.HasProtocol, 8)|flag(m.HasDSCP, 4)|flag(m.HasLabel, 2)|flag(m.HasSPI, 1),
		flag(m.HasSourcePort, 0x80)|flag(m.HasDestinationPort, 0x40)|flag(m.Upstream, 0x20))
	b = append(b, m.Source.AsSlice()...)
	b = append(b, m.Destination.AsSlice()...)
	b = append(b, m.SourceBits, m.DestinationBits, m.Protocol, m.DSCP<<2)
	if m.HasLabel {
		b = binary.BigEndian.AppendUint32(b, m.FlowLabel)
	}
	if m.HasSPI {
		b = binary.BigEndian.AppendUint32(b, m.SPI)
	}
	if m.HasSourcePort || m.HasDestinationPort {
		b = binary.BigEndian.AppendUint16(b, m.SourcePort)
		b = binary.BigEndian.AppendUint16(b, m.DestinationPort)
	}
	return b
}

func parseMRI(v []byte) (*MRI, *Error) {
	if len(v) < 4 {
		return nil, protocolError(codeObjectValue, 0)
	}
	if v[0] != 0 {
		return nil, protocolError(codeObjectValue, 1) // another routing method
	}
	size := 4
	switch v[2] >> 4 {
	case 6:
		size = 16
	case 4:
	default:
		return nil, protocolError(codeObjectValue, 1)
	}
	m := &MRI{
		HasProtocol: v[2]&8 != 0, HasDSCP: v[2]&4 != 0, HasLabel: v[2]&2 != 0, HasSPI: v[2]&1 != 0,
		HasSourcePort: v[3]&0x80 != 0, HasDestinationPort: v[3]&0x40 != 0, Upstream: v[3]&0x20 != 0,
	}
	ports := m.HasSourcePort || m.HasDestinationPort
	want := 4 + 2*size + 4
	for _, more := range []bool{m.HasLabel, m.HasSPI, ports} {
		if more {
			want += 4
		}
	}
	switch {
	case len(v) != want:
		return nil, protocolError(codeObjectValue, 0)
	case m.HasLabel && size == 4, (m.HasSPI || ports) && !m.HasProtocol, m.HasSPI && ports:
		return nil, protocolError(codeObjectValue, 2)
	}
	m.Source, _ = netip.AddrFromSlice(v[4 : 4+size])
	m.Destination, _ = netip.AddrFromSlice(v[4+size : 4+2*size])
	v = v[4+2*size:]
	m.SourceBits, m.DestinationBits, m.Protocol, m.DSCP = v[0], v[1], v[2], v[3]>>2
	if int(m.SourceBits) > size*8 || int(m.DestinationBits) > size*8 || m.Source.Is4In6() || m.Destination.Is4In6() {
		return nil, protocolError(codeObjectValue, 1)
	}
	v = v[4:]
	if m.HasLabel {
		m.FlowLabel, v = binary.BigEndian.Uint32(v)&0xfffff, v[4:]
	}
	if m.HasSPI {
		m.SPI, v = binary.BigEndian.Uint32(v), v[4:]
	}
	if ports {
		m.SourcePort, m.DestinationPort = binary.BigEndian.Uint16(v), binary.BigEndian.Uint16(v[2:])
	}
	return m, nil
}

// NLI says who the sender of a message is (§A.3.3).
type NLI struct {
	Peer    string // identity, the same on all interfaces
	Address netip.Addr
	TTL     uint8
	// Valid is how long the receiver may believe in the route without a refresh.
	Valid time.Duration
}

func (n *NLI) append(b []byte) []byte {
	version := byte(4)
	if n.Address.Is6() {
		version = 6
	}
	b = append(b, byte(len(n.Peer)), n.TTL, version<<4, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(n.Valid/time.Millisecond))
	b = append(b, n.Peer...)
	b = append(b, make([]byte, -len(n.Peer)&3)...)
	return append(b, n.Address.AsSlice()...)
}

func parseNLI(v []byte) (*NLI, *Error) {
	if len(v) < 8 {
		return nil, protocolError(codeObjectValue, 0)
	}
	size, length := 4, int(v[0])
	switch v[2] >> 4 {
	case 6:
		size = 16
	case 4:
	default:
		return nil, protocolError(codeObjectValue, 1)
	}
	padded := (length + 3) &^ 3
	if len(v) != 8+padded+size {
		return nil, protocolError(codeObjectValue, 0)
	}
	n := &NLI{TTL: v[1], Peer: string(v[8 : 8+length]), Valid: time.Duration(binary.BigEndian.Uint32(v[4:])) * time.Millisecond}
	n.Address, _ = netip.AddrFromSlice(v[8+padded:])
	if n.Valid == 0 || length == 0 || n.Address.Is4In6() {
		return nil, protocolError(codeObjectValue, 1)
	}
	return n, nil
}
