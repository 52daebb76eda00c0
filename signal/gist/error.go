package gist

import (
	"encoding/binary"
	"fmt"
)

// Class is how grave an error is (§A.4.3).
type Class uint8

// The classes.
const (
	Informational Class = iota
	Success
	ProtocolError
	TransientFailure
	PermanentFailure
)

// Codes of errors (§A.4.4).
const (
	codeHeader        = 1
	codeHops          = 2
	codeEncapsulation = 3
	codeDelivered     = 4
	codeNoState       = 5
	codeNSLPID        = 6
	codeEndpoint      = 7
	codeTooLarge      = 8
	codeObjectType    = 9
	codeObjectValue   = 10
	codeTTL           = 11
	codeMRI           = 12
)

// Error is the error object (§A.4.1), and a Go error.
type Error struct {
	Class   Class
	Code    uint16
	Subcode uint8
	Header  [8]byte // of the message that it is about
	// QMode: that message came as a Query does.
	QMode bool
	// Session and MRI of that message, if they could be read.
	Session *SessionID
	MRI     *MRI
	Comment string
	// Info is the additional information, as it came.
	Info []byte
	info uint8 // how many fields Info has
}

var errorWords = map[uint16]string{
	codeHeader: "common header parse error", codeHops: "hop limit exceeded", codeEncapsulation: "incorrect encapsulation",
	codeDelivered: "incorrectly delivered message", codeNoState: "no routing state", codeNSLPID: "unknown signalling application",
	codeEndpoint: "end point found", codeTooLarge: "message too large", codeObjectType: "object type error",
	codeObjectValue: "object value error", codeTTL: "invalid IP-layer TTL", codeMRI: "routing information not accepted",
}

// Error implements error.
func (e *Error) Error() string {
	words := errorWords[e.Code]
	if words == "" {
		words = fmt.Sprintf("error %d", e.Code)
	}
	if e.Subcode != 0 {
		words = fmt.Sprintf("%s (subcode %d)", words, e.Subcode)
	}
	if e.Comment != "" {
		words += ": " + e.Comment
	}
	return "GIST: " + words
}

func protocolError(code uint16, subcode uint8) *Error {
	return &Error{Class: ProtocolError, Code: code, Subcode: subcode}
}

// Kinds of additional information (§A.4.2).
const (
	infoLength = 1
	infoType   = 3
	infoObject = 4
)

// words is a number in additional information: 16 bits, and as many zeros.
func words(n int) []byte { return []byte{byte(n >> 8), byte(n), 0, 0} }

// with adds additional information.
func (e *Error) with(kind uint16, value []byte) *Error {
	e.Info = binary.BigEndian.AppendUint16(e.Info, kind)
	e.Info = append(binary.BigEndian.AppendUint16(e.Info, uint16(len(value)/4)), value...)
	e.info++
	return e
}

// withObject adds an object that is at fault, at one of its octets.
func (e *Error) withObject(at int, object []byte) *Error {
	v := binary.BigEndian.AppendUint16(nil, uint16(len(object)/4)&0xfff)
	return e.with(infoObject, append(binary.BigEndian.AppendUint16(v, uint16(at)), object...))
}

func (e *Error) append(b []byte) []byte {
	var mri []byte
	if e.MRI != nil {
		mri = e.MRI.append(nil)
	}
	b = append(b, byte(e.Class), byte(e.Code>>8), byte(e.Code), e.Subcode)
	flags := flag(e.Session != nil, 0x80) | flag(e.MRI != nil, 0x40) | flag(e.Comment != "", 0x20) | 0x10 | flag(e.QMode, 0x08)
	b = append(b, flags, 0, byte(len(mri)/4), e.info)
	b = append(b, e.Header[:]...)
	if e.Session != nil {
		b = append(b, e.Session[:]...)
	}
	b = append(b, mri...)
	b = append(b, e.Info...)
	if e.Comment != "" {
		b = append(b, e.Comment...)
		b = append(b, make([]byte, 4-len(e.Comment)%4)...) // ends with a zero
	}
	return b
}

func parseError(v []byte) (*Error, *Error) {
	short := protocolError(codeObjectValue, 0)
	if len(v) < 16 {
		return nil, short
	}
	e := &Error{Class: Class(v[0]), Code: binary.BigEndian.Uint16(v[1:]), Subcode: v[3], Header: [8]byte(v[8:16]), info: v[7],
		QMode: v[4]&0x08 != 0}
	flags, mri := v[4], int(v[6])*4
	v = v[16:]
	if flags&0x80 != 0 {
		if len(v) < 16 {
			return nil, short
		}
		s := SessionID(v[:16])
		e.Session, v = &s, v[16:]
	}
	if flags&0x40 != 0 {
		if len(v) < mri {
			return nil, short
		}
		m, bad := parseMRI(v[:mri])
		if bad != nil {
			return nil, bad
		}
		e.MRI, v = m, v[mri:]
	}
	info := 0
	for range e.info {
		if len(v) < info+4 {
			return nil, short
		}
		if info += 4 + int(binary.BigEndian.Uint16(v[info+2:]))*4; len(v) < info {
			return nil, short
		}
	}
	e.Info, v = v[:info:info], v[info:]
	if flags&0x20 != 0 {
		for i, c := range v {
			if c == 0 {
				e.Comment = string(v[:i])
				break
			}
		}
	}
	return e, nil
}
