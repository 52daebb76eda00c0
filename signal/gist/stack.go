package gist

import (
	"bytes"
	"encoding/binary"
	"time"
)

// Connection mode (§5.4, §5.7): messaging associations over TCP, for what is longer than a
// datagram. The node that asks opens them; TLS is not offered.

// MaxStream is the longest payload of a message in a connection, octets: an object's length
// has 12 bits for words.
const MaxStream = 0xfff * 4

// MaxStreamMessage is the longest message in a connection that is read, octets.
const MaxStreamMessage = MaxStream + 2048

// Hold is how long a connection without messages stays open (§4.4.5).
const Hold = 30 * time.Second

// forwardsTCP is the protocol of an association that the Querying node opens (§9).
const forwardsTCP = 1

// stackProposal is the only one of this node: one profile, of one protocol (§A.3.4).
var stackProposal = []byte{1, 0, 0, 0, 1, forwardsTCP, 0, 0}

// stackConfig is the configuration of a stack (§A.3.5): a Query's without a port, a
// Response's with one.
func stackConfig(options int, port uint16) []byte {
	b := binary.BigEndian.AppendUint32([]byte{byte(options), 0, 0, 0}, uint32(Hold/time.Millisecond))
	if options == 0 {
		return b // a Confirm's: the time alone
	}
	if port == 0 {
		return append(b, forwardsTCP, 0, 0, 0)
	}
	return append(binary.BigEndian.AppendUint16(append(b, forwardsTCP, 0, 2, 0), port), 0, 0)
}

// checkProposal looks at each profile of a proposal, and says which is TCP alone, from 1 on;
// 0: none is.
func checkProposal(v []byte) (tcp int, e *Error) {
	if len(v) < 4 {
		return 0, protocolError(codeObjectValue, 0)
	}
	count, rest := int(v[0]), v[4:]
	if count == 0 {
		return 0, protocolError(codeObjectValue, 1)
	}
	for i := range count {
		if len(rest) == 0 {
			return 0, protocolError(codeObjectValue, 0)
		}
		size := (1 + int(rest[0]) + 3) &^ 3
		switch {
		case rest[0] == 0:
			return 0, protocolError(codeObjectValue, 3)
		case size > len(rest):
			return 0, protocolError(codeObjectValue, 0)
		}
		if tcp == 0 && bytes.Equal(rest[:2], []byte{1, forwardsTCP}) {
			tcp = i + 1
		}
		rest = rest[size:]
	}
	return tcp, nil
}

// checkConfig reads a stack's configuration: the port at which TCP is taken for a profile, if
// that is in it and not said to be unusable. Options of profile 0 are those of all.
func checkConfig(v []byte, profile int) (port uint16, e *Error) {
	if len(v) < 8 {
		return 0, protocolError(codeObjectValue, 0)
	}
	if binary.BigEndian.Uint32(v[4:]) == 0 {
		return 0, protocolError(codeObjectValue, 1)
	}
	rest := v[8:]
	for range v[0] {
		if len(rest) < 4 {
			return 0, protocolError(codeObjectValue, 0)
		}
		id, of, size, unusable := rest[0], int(rest[1]), int(rest[2]), rest[3]&0x80 != 0
		padded := 4 + (size+3)&^3
		if len(rest) < padded {
			return 0, protocolError(codeObjectValue, 0)
		}
		if id == forwardsTCP && (of == 0 && port == 0 || of == profile) && size >= 2 && !unusable {
			port = binary.BigEndian.Uint16(rest[4:])
		}
		rest = rest[padded:]
	}
	return port, nil
}

// tcpPort is where the sender of a Response takes connections; 0: it takes none.
func (m *Message) tcpPort() uint16 {
	profile, e := checkProposal(m.StackProposal)
	if profile == 0 || e != nil {
		return 0
	}
	port, e := checkConfig(m.StackConfig, profile)
	if e != nil {
		return 0
	}
	return port
}

// StreamLength is how long a message in a connection is, by the 8 octets of its header.
func StreamLength(header []byte) int { return 8 + int(binary.BigEndian.Uint16(header[2:]))*4 }
