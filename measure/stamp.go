package measure

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"
)

// Port is where nodes answer, over UDP (RFC 8762 §4.1).
const Port = 862

// packetSize is the size of all packets in authenticated mode (RFC 8762, Figures 4 and 7).
const packetSize = 112

// Offsets of the fields of both packets; what lies between must be zero.
const (
	atSequence       = 0
	atTimestamp      = 16
	atErrorEstimate  = 24
	atReceived       = 32 // by the reflector
	atSenderSequence = 48
	atSenderTime     = 64
	atSenderError    = 72
	atSenderTTL      = 80
	atHMAC           = 96
)

// unsynchronised is an error estimate for a clock that nobody set: S and Z clear, scale 0,
// multiplier 1 (RFC 4656 §4.1.2).
const unsynchronised = 1

var errNotSTAMP = errors.New("not a STAMP packet signed with the nodes' secret")

// request is what a sender sends, reply what a reflector answers.
type request struct {
	sequence uint32
	sent     uint64 // NTP timestamp
	ttl      byte   // hop limit on arrival at the reflector; the sender does not write it
}

type reply struct {
	sequence       uint32
	sent, received uint64 // by the reflector
	request
}

// ntp writes a time as seconds since 1900 and their 2⁻³²ths.
func ntp(t time.Time) uint64 {
	const toUnix = 2_208_988_800
	return uint64(t.Unix()+toUnix)<<32 | uint64(t.Nanosecond())<<32/uint64(time.Second)
}

// between is how long it is from a to b, also over the timestamp's end in 2036.
func between(a, b uint64) time.Duration {
	d := int64(b - a)
	return time.Duration(d>>32)*time.Second + time.Duration(uint64(d)&0xffffffff*uint64(time.Second)>>32)
}

func sign(b, key []byte) {
	mac := hmac.New(sha256.New, key)
	mac.Write(b[:atHMAC])
	copy(b[atHMAC:packetSize], mac.Sum(nil)) // the first 16 bytes
}

func signed(b, key []byte) bool {
	mac := hmac.New(sha256.New, key)
	mac.Write(b[:atHMAC])
	return hmac.Equal(b[atHMAC:packetSize], mac.Sum(nil)[:packetSize-atHMAC])
}

func (r request) encode(key []byte) []byte {
	b := make([]byte, packetSize)
	binary.BigEndian.PutUint32(b[atSequence:], r.sequence)
	binary.BigEndian.PutUint64(b[atTimestamp:], r.sent)
	binary.BigEndian.PutUint16(b[atErrorEstimate:], unsynchronised)
	sign(b, key)
	return b
}

func decodeRequest(b, key []byte) (request, error) {
	if len(b) != packetSize || !signed(b, key) {
		return request{}, errNotSTAMP
	}
	return request{sequence: binary.BigEndian.Uint32(b[atSequence:]), sent: binary.BigEndian.Uint64(b[atTimestamp:])}, nil
}

func (r reply) encode(key []byte) []byte {
	b := make([]byte, packetSize)
	binary.BigEndian.PutUint32(b[atSequence:], r.sequence)
	binary.BigEndian.PutUint64(b[atTimestamp:], r.sent)
	binary.BigEndian.PutUint16(b[atErrorEstimate:], unsynchronised)
	binary.BigEndian.PutUint64(b[atReceived:], r.received)
	binary.BigEndian.PutUint32(b[atSenderSequence:], r.request.sequence)
	binary.BigEndian.PutUint64(b[atSenderTime:], r.request.sent)
	binary.BigEndian.PutUint16(b[atSenderError:], unsynchronised)
	b[atSenderTTL] = r.request.ttl
	sign(b, key)
	return b
}

func decodeReply(b, key []byte) (reply, error) {
	if len(b) != packetSize || !signed(b, key) {
		return reply{}, errNotSTAMP
	}
	return reply{
		sequence: binary.BigEndian.Uint32(b[atSequence:]), sent: binary.BigEndian.Uint64(b[atTimestamp:]),
		received: binary.BigEndian.Uint64(b[atReceived:]),
		request: request{sequence: binary.BigEndian.Uint32(b[atSenderSequence:]), sent: binary.BigEndian.Uint64(b[atSenderTime:]),
			ttl: b[atSenderTTL]},
	}, nil
}

// Keys: a reply is no request, so that nobody can have two reflectors answer each other.
func requestKey(secret []byte) []byte { return derive(secret, "onpath STAMP request") }
func replyKey(secret []byte) []byte   { return derive(secret, "onpath STAMP reply") }

func derive(secret []byte, use string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(use))
	return mac.Sum(nil)
}
