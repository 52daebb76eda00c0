package accel

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/pires/go-proxyproto"
	"golang.org/x/sys/unix"
)

// The header's own fields, from the range that PROXY protocol v2 leaves to applications
// (§2.2.7 of its specification).
const (
	typeTenant    proxyproto.PP2Type = 0xE0 // name, UTF-8
	typeNext      proxyproto.PP2Type = 0xE1 // relays to come: 16 bytes of address and 2 of port each
	typeNonce     proxyproto.PP2Type = 0xE2 // 16 random bytes
	typeControl   proxyproto.PP2Type = 0xE4 // congestion control of further legs, ASCII; may be empty
	typeWait      proxyproto.PP2Type = 0xE5 // empty: answer once the origin has answered
	typeSignature proxyproto.PP2Type = 0xE3 // HMAC-SHA256 over the header before it
)

const (
	fixedHeader = 16   // bytes before addresses and fields
	maxHeader   = 1024 // bytes of addresses and fields
	maxNext     = 16   // relays of one chain
	nonceSize   = 16
	nextSize    = 18
)

// header is what a relay tells the next one before the client's first byte.
type header struct {
	client, origin netip.AddrPort
	tenant         string
	next           []netip.AddrPort
	congestion     string
	nonce          [nonceSize]byte
	wait           bool
}

var errUnsigned = errors.New("the header is not signed with this node's secret")

// signingKey binds a signature to the node that is to read it.
func signingKey(secret []byte, reader netip.Addr) []byte {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "onpath relay %s", reader.Unmap())
	return mac.Sum(nil)
}

// encode writes the header for the relay at reader.
func (h *header) encode(secret []byte, reader netip.Addr) ([]byte, error) {
	if len(h.next) > maxNext {
		return nil, fmt.Errorf("a chain of %d relays: %d at most", len(h.next), maxNext)
	}
	next := make([]byte, 0, len(h.next)*nextSize)
	for _, n := range h.next {
		a := n.Addr().As16()
		next = binary.BigEndian.AppendUint16(append(next, a[:]...), n.Port())
	}
	tlvs := []proxyproto.TLV{
		{Type: typeTenant, Value: []byte(h.tenant)}, {Type: typeNext, Value: next},
		{Type: typeControl, Value: []byte(h.congestion)}, {Type: typeNonce, Value: h.nonce[:]},
	}
	if h.wait {
		tlvs = append(tlvs, proxyproto.TLV{Type: typeWait})
	}
	unsigned, err := h.format(tlvs)
	if err != nil {
		return nil, err
	}
	return h.format(append(tlvs, proxyproto.TLV{Type: typeSignature, Value: signature(secret, reader, unsigned)}))
}

// signature covers all of the header but its length, which the signature itself changes.
func signature(secret []byte, reader netip.Addr, unsigned []byte) []byte {
	mac := hmac.New(sha256.New, signingKey(secret, reader))
	mac.Write(unsigned[:fixedHeader-2])
	mac.Write(unsigned[fixedHeader:])
	return mac.Sum(nil)
}

func (h *header) format(tlvs []proxyproto.TLV) ([]byte, error) {
	p := proxyproto.HeaderProxyFromAddrs(2, net.TCPAddrFromAddrPort(h.client), net.TCPAddrFromAddrPort(h.origin))
	if err := p.SetTLVs(tlvs); err != nil {
		return nil, err
	}
	return p.Format()
}

// readHeader reads exactly the header, so that the client's bytes behind it stay in the
// socket, and checks its signature.
func readHeader(r io.Reader, secret []byte, reader netip.Addr) (*header, error) {
	raw := make([]byte, fixedHeader, fixedHeader+maxHeader)
	if _, err := io.ReadFull(r, raw); err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	size := int(binary.BigEndian.Uint16(raw[fixedHeader-2:]))
	if size > maxHeader {
		return nil, fmt.Errorf("a header of %d bytes: %d at most", size, maxHeader)
	}
	raw = raw[:fixedHeader+size]
	if _, err := io.ReadFull(r, raw[fixedHeader:]); err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	return decode(raw, secret, reader)
}

// tail is the size of the last field: a type, a length, and the signature.
const tail = 3 + sha256.Size

// decode reads a header that has come whole. Before its signature holds, nothing of it is read.
func decode(raw, secret []byte, reader netip.Addr) (*header, error) {
	if len(raw) < fixedHeader+tail {
		return nil, errUnsigned
	}
	unsigned, last := raw[:len(raw)-tail], raw[len(raw)-tail:]
	wanted := append([]byte{byte(typeSignature), 0, sha256.Size}, signature(secret, reader, unsigned)...)
	if !hmac.Equal(last, wanted) {
		return nil, errUnsigned
	}
	p, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(raw)))
	if err != nil {
		return nil, err
	}
	tlvs, err := p.TLVs()
	if err != nil {
		return nil, err
	}
	return fields(p, tlvs)
}

func fields(p *proxyproto.Header, tlvs []proxyproto.TLV) (*header, error) {
	client, origin, ok := p.TCPAddrs()
	if !ok {
		return nil, errors.New("the header names no TCP connection")
	}
	h := &header{client: unmap(client.AddrPort()), origin: unmap(origin.AddrPort())}
	for _, t := range tlvs {
		switch t.Type {
		case typeTenant:
			h.tenant = string(t.Value)
		case typeControl:
			h.congestion = string(t.Value)
		case typeNext:
			if len(t.Value)%nextSize != 0 || len(t.Value) > maxNext*nextSize {
				return nil, fmt.Errorf("%d bytes of relays to come", len(t.Value))
			}
			for v := t.Value; len(v) > 0; v = v[nextSize:] {
				addr := netip.AddrFrom16([16]byte(v[:16])).Unmap()
				h.next = append(h.next, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(v[16:])))
			}
		case typeNonce:
			if len(t.Value) != nonceSize {
				return nil, fmt.Errorf("a nonce of %d bytes", len(t.Value))
			}
			copy(h.nonce[:], t.Value)
		case typeWait:
			h.wait = true
		}
	}
	return h, nil
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// origins' answers, by the byte that tells them to the relay before.
var originAnswers = []syscall.Errno{0, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ETIMEDOUT}

// notServed is what a relay says that could not ask the origin.
const notServed = 255

// answerTimeout is by when a relay has said how the origin answered.
const answerTimeout = connectTimeout + headerTimeout

// isAnswer reports whether a leg failed because of what the origin, or the way there, has said.
func isAnswer(err error) bool { return err != nil && answerCode(err) != notServed }

func answerCode(err error) byte {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = unix.ETIMEDOUT
	}
	for code, is := range originAnswers {
		if is == 0 && err == nil || is != 0 && errors.Is(err, is) {
			return byte(code)
		}
	}
	return notServed
}

// encodeAnswer is what a header that waits gets: how the origin answered, and the header's
// nonce, by which it is no byte of the origin's.
func encodeAnswer(failed error, nonce [nonceSize]byte) []byte {
	return append([]byte{answerCode(failed)}, nonce[:]...)
}

// readAnswer waits for it, and leaves the bytes behind it in the socket.
func readAnswer(c conn, nonce [nonceSize]byte) error {
	var got [1 + nonceSize]byte
	_ = c.SetReadDeadline(now().Add(answerTimeout))
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return fmt.Errorf("has not answered: %v", err) // no answer of the origin's
	}
	switch code := int(got[0]); {
	case [nonceSize]byte(got[1:]) != nonce:
		return errors.New("is of an earlier version, which does not wait for origins")
	case code >= len(originAnswers):
		return errors.New("could not ask the origin")
	case code > 0:
		return originAnswers[code]
	}
	return c.SetReadDeadline(time.Time{})
}
