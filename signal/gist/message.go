package gist

import (
	"encoding/binary"
	"errors"
	"slices"
)

// Numbers of RFC 5971 §9, and of this signalling application.
const (
	Magic   = 0x4e04bda5 // begins each UDP payload (§5.3.1)
	Port    = 270        // UDP, of Queries
	Version = 1
	// NSLPID is the signalling application, of the range for experiments.
	NSLPID = 32704
)

// MaxMessage is the longest UDP payload that is sent, bytes: what IPv6's smallest MTU
// holds. A longer message goes by a connection.
const MaxMessage = 1280 - 40 - 8

// DefaultHops is how many GIST nodes a message may pass.
const DefaultHops = 32

// Type is a message's.
type Type uint8

// The types of messages (§5.1).
const (
	Query Type = iota
	Response
	Confirm
	Data
	ErrorMessage
	Hello
)

// SessionID names a signalling session; random.
type SessionID [16]byte

// Message is one GIST message. Absent objects are nil.
type Message struct {
	Hops   uint8
	NSLPID uint16
	Type   Type
	// QMode: the message is to be understood without state (C flag).
	QMode bool
	// Source: its IP source address is the sender's own (S flag).
	Source bool
	// Reply: an answer is asked for (R flag).
	Reply bool
	// Explicit: it was routed explicitly (E flag).
	Explicit bool

	MRI             *MRI
	Session         *SessionID
	NLI             *NLI
	StackProposal   []byte // as it came
	StackConfig     []byte
	QueryCookie     []byte
	ResponderCookie []byte
	NAT             []byte // NAT traversal object, as it came
	Payload         []byte // NSLP data
	Error           *Error
	HelloID         []byte
	// Others are objects that are not known and must go along with what is forwarded.
	Others []Object
}

// Object is one that is not known here: its header's first 16 bits, and its value.
type Object struct {
	Head  uint16
	Value []byte
}

// Types of objects (§9).
const (
	objMRI = iota
	objSession
	objNLI
	objStackProposal
	objStackConfig
	objQueryCookie
	objResponderCookie
	objNAT
	objPayload
	objError
	objHelloID
	objects
)

// ErrNoGIST says that a datagram is not GIST's: it is dropped, or forwarded, in silence.
var ErrNoGIST = errors.New("the datagram does not begin with GIST's magic number")

// OfNone reports whether a datagram is GIST's and of no signalling application, as Errors are.
func OfNone(b []byte) bool {
	return len(b) >= headerLength && binary.BigEndian.Uint32(b) == Magic && binary.BigEndian.Uint16(b[8:]) == 0
}

const headerLength = 4 + 8 // magic number, common header

// Append appends the message as a UDP payload.
func (m *Message) Append(b []byte) []byte {
	return m.AppendStream(binary.BigEndian.AppendUint32(b, Magic))
}

// AppendStream appends the message as it stands in a connection.
func (m *Message) AppendStream(b []byte) []byte {
	begin := len(b)
	b = append(b, Version, m.Hops, 0, 0)
	b = binary.BigEndian.AppendUint16(b, m.NSLPID)
	b = append(b, byte(m.Type)|flag(m.QMode, 0x80), flag(m.Source, 0x80)|flag(m.Reply, 0x40)|flag(m.Explicit, 0x20))
	if m.NAT != nil {
		b = appendObject(b, objNAT, m.NAT)
	}
	if m.MRI != nil {
		b = appendObject(b, objMRI, m.MRI.append(nil))
	}
	if m.Session != nil {
		b = appendObject(b, objSession, m.Session[:])
	}
	if m.NLI != nil {
		b = appendObject(b, objNLI, m.NLI.append(nil))
	}
	for _, o := range []struct {
		kind  uint16
		value []byte
	}{
		{objQueryCookie, m.QueryCookie}, {objResponderCookie, m.ResponderCookie}, {objStackProposal, m.StackProposal},
		{objStackConfig, m.StackConfig}, {objHelloID, m.HelloID},
	} {
		if o.value != nil {
			b = appendObject(b, o.kind, o.value)
		}
	}
	if m.Error != nil {
		b = appendObject(b, objError, m.Error.append(nil))
	}
	for _, o := range m.Others {
		b = appendObject(b, o.Head, o.Value)
	}
	if m.Payload != nil {
		b = appendObject(b, objPayload, m.Payload)
	}
	binary.BigEndian.PutUint16(b[begin+2:], uint16((len(b)-begin-8)/4))
	return b
}

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

// appendObject appends an object, padded to whole words.
func appendObject(b []byte, head uint16, value []byte) []byte {
	words := (len(value) + 3) / 4
	b = binary.BigEndian.AppendUint16(b, head)
	b = binary.BigEndian.AppendUint16(b, uint16(words)&0xfff)
	b = append(b, value...)
	return append(b, make([]byte, words*4-len(value))...)
}

// Parse reads a UDP payload. The error is ErrNoGIST, or an *Error to tell the sender of;
// its Message then has what could be read.
func Parse(b []byte) (*Message, error) {
	if len(b) < headerLength || binary.BigEndian.Uint32(b) != Magic {
		return nil, ErrNoGIST
	}
	return parse(b[4:], false)
}

// ParseStream reads a message of a connection; its errors are Parse's.
func ParseStream(b []byte) (*Message, error) {
	if len(b) < headerLength-4 {
		return nil, ErrNoGIST
	}
	return parse(b, true)
}

func parse(h []byte, stream bool) (*Message, error) {
	m := &Message{
		Hops: h[1], NSLPID: binary.BigEndian.Uint16(h[4:]), Type: Type(h[6] & 0x7f),
		QMode: h[6]&0x80 != 0, Source: h[7]&0x80 != 0, Reply: h[7]&0x40 != 0, Explicit: h[7]&0x20 != 0,
	}
	fail := func(e *Error) (*Message, error) {
		e.Header = [8]byte(h[:8])
		if e.Code != codeHeader { // §A.4.4.1: of a bad header nothing else is believed
			e.Session, e.MRI = m.Session, m.MRI
		}
		return m, e
	}
	if e := m.checkHeader(h[0]); e != nil {
		return fail(e)
	}
	if stream && m.Type == Query || !stream && m.Type == Hello { // §5.5
		return fail(protocolError(codeEncapsulation, 0))
	}
	may := objectsOf[m.Type]
	if stream && m.Type == Data {
		may.needed = slices.DeleteFunc(slices.Clone(may.needed), func(kind uint16) bool { return kind == objNLI })
	}
	length, e := m.parseObjects(h[8:], may)
	if length != len(h)-8 || length != int(binary.BigEndian.Uint16(h[2:]))*4 {
		return fail(protocolError(codeHeader, 3).with(infoLength, words(length/4)))
	}
	if e == nil {
		e = m.checkObjects(may.needed)
	}
	if e != nil {
		return fail(e)
	}
	return m, nil
}

// parseObjects takes up all objects that can be read, and gives the length that they have
// together, octets, and the first fault.
func (m *Message) parseObjects(rest []byte, may objectList) (length int, fault *Error) {
	var seen [objects]bool
	for len(rest) >= 4 {
		head, size := binary.BigEndian.Uint16(rest), 4+int(binary.BigEndian.Uint16(rest[2:])&0xfff)*4
		length += size
		if size > len(rest) {
			break
		}
		if e := m.object(head, rest[4:size], &seen, may); e != nil && fault == nil {
			switch fault = e; e.Code {
			case codeObjectType:
				e.with(infoType, words(int(head)))
			case codeObjectValue:
				at := 4 // the value
				if e.Subcode == 0 {
					at = 2 // the length
				}
				e.withObject(at, rest[:size])
			}
		}
		rest = rest[size:]
	}
	return length, fault
}

// checkHeader is the common header's (§A.1).
func (m *Message) checkHeader(version byte) *Error {
	switch {
	case version != Version:
		return protocolError(codeHeader, 0)
	case m.Type > Hello:
		return protocolError(codeHeader, 1)
	case m.Type == Query && !m.Reply, m.Reply && (m.Type == Confirm || m.Type == Data || m.Type == ErrorMessage):
		return protocolError(codeHeader, 2)
	case m.Explicit && m.Type != Data:
		return protocolError(codeHeader, 4)
	case m.QMode && m.Type != Query && m.Type != Data, m.Type == Query && !m.QMode:
		return protocolError(codeHeader, 5)
	}
	return nil
}

// object takes one object up.
func (m *Message) object(head uint16, v []byte, seen *[objects]bool, may objectList) (e *Error) {
	kind := head & 0xfff
	switch {
	case head>>14 == 3:
		return protocolError(codeObjectType, 5)
	case kind >= objects && head>>14 == 0:
		return protocolError(codeObjectType, 1)
	case kind >= objects:
		if head>>14 == 2 {
			m.Others = append(m.Others, Object{head & 0xcfff, v})
		}
		return nil
	case seen[kind]:
		return protocolError(codeObjectType, 0)
	case !slices.Contains(may.needed, kind) && !slices.Contains(may.allowed, kind):
		return protocolError(codeObjectType, 3)
	}
	seen[kind] = true
	switch kind {
	case objMRI:
		m.MRI, e = parseMRI(v)
	case objSession:
		if len(v) != len(SessionID{}) {
			return protocolError(codeObjectValue, 0)
		}
		s := SessionID(v)
		m.Session = &s
	case objNLI:
		m.NLI, e = parseNLI(v)
	case objError:
		m.Error, e = parseError(v)
	case objStackProposal:
		_, e = checkProposal(v)
	case objStackConfig:
		_, e = checkConfig(v, 0)
	case objHelloID:
		if len(v) != 4 {
			e = protocolError(codeObjectValue, 0)
		} else if m.Reply && binary.BigEndian.Uint32(v) == 0 {
			e = protocolError(codeObjectValue, 1)
		}
	}
	if raw := m.raw(kind); raw != nil {
		*raw = v
	}
	return e
}

// raw is where an object is kept as it came.
func (m *Message) raw(kind uint16) *[]byte {
	switch kind {
	case objStackProposal:
		return &m.StackProposal
	case objStackConfig:
		return &m.StackConfig
	case objQueryCookie:
		return &m.QueryCookie
	case objResponderCookie:
		return &m.ResponderCookie
	case objNAT:
		return &m.NAT
	case objHelloID:
		return &m.HelloID
	case objPayload:
		return &m.Payload
	}
	return nil
}

// objectList are the objects that a message must have, and those that it may.
type objectList struct{ needed, allowed []uint16 }

// objectsOf are those of messages of each type (§5.1), in datagram mode.
var objectsOf = [Hello + 1]objectList{
	Query: {[]uint16{objMRI, objSession, objNLI, objQueryCookie}, []uint16{objNAT, objStackProposal, objStackConfig, objPayload}},
	Response: {[]uint16{objMRI, objSession, objNLI, objQueryCookie},
		[]uint16{objNAT, objResponderCookie, objStackProposal, objStackConfig, objPayload}},
	Confirm:      {[]uint16{objMRI, objSession, objNLI}, []uint16{objResponderCookie, objStackProposal, objStackConfig, objPayload}},
	Data:         {[]uint16{objMRI, objSession, objNLI, objPayload}, []uint16{objNAT}},
	ErrorMessage: {[]uint16{objError}, []uint16{objNAT, objNLI}},
	Hello:        {[]uint16{objHelloID}, nil},
}

// checkObjects says whether the message has what its type needs (§5.1).
func (m *Message) checkObjects(needed []uint16) *Error {
	if m.Type == Response && m.ResponderCookie != nil && !m.Reply {
		return protocolError(codeHeader, 2)
	}
	if m.Type != Confirm && (m.StackProposal != nil) != (m.StackConfig != nil) {
		needed = append(slices.Clone(needed), objStackProposal, objStackConfig)
	}
	for _, kind := range needed {
		if !m.has(kind) {
			return protocolError(codeObjectType, 2).with(infoType, words(int(kind)))
		}
	}
	return nil
}

// has reports whether an object is there.
func (m *Message) has(kind uint16) bool {
	switch kind {
	case objMRI:
		return m.MRI != nil
	case objSession:
		return m.Session != nil
	case objNLI:
		return m.NLI != nil
	case objError:
		return m.Error != nil
	}
	return *m.raw(kind) != nil
}
