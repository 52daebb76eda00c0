package functest

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// Capture reads the packets of a pcap or pcapng file, one after the other.
type Capture struct {
	name   string
	n      int // packets read
	mixed  bool
	link   layers.LinkType
	source interface {
		ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error)
	}
}

// frame is a packet of a capture, until the next is read.
type frame struct {
	number int
	at     time.Time // zero: the capture does not say
	link   layers.LinkType
	data   []byte
	length int // on the wire
	vlan   []uint16
	head   int  // bytes before the IP header
	ip     bool // there is one
}

const magicNg, magicGzip = 0x0a0d0d0a, 0x1f8b

func (c *Capture) errorf(remedy, format string, args ...any) error {
	e := onpath.Errorf(onpath.CodeInvalid, "%s: %w", c.name, fmt.Errorf(format, args...))
	e.Remedy = remedy
	return e
}

// ReadCapture begins to read a capture, which may be compressed by gzip. Its errors say name.
func ReadCapture(name string, r io.Reader) (*Capture, error) {
	c := &Capture{name: name}
	in := bufio.NewReaderSize(r, 1<<16)
	magic, err := in.Peek(2)
	if err == nil && binary.BigEndian.Uint16(magic) == magicGzip {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, c.errorf("give a capture as tcpdump writes it", "gzip: %w", err)
		}
		in = bufio.NewReaderSize(z, 1<<16)
	}
	magic, err = in.Peek(4)
	switch {
	case errors.Is(err, io.EOF) && len(magic) == 0:
		return nil, c.errorf("capture again: tcpdump writes its last packets when it ends", "the file is empty")
	case err != nil && !errors.Is(err, io.EOF):
		return nil, c.errorf("", "%w", err)
	case len(magic) == 4 && binary.BigEndian.Uint32(magic) == magicNg:
		ng, err := pcapgo.NewNgReader(in, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
		if err != nil {
			return nil, c.errorf("capture again, or write what is whole with editcap", "its head cannot be read: %w", whole(err))
		}
		c.source, c.mixed = ng, true
		return c, nil
	}
	old, err := pcapgo.NewReader(in)
	if err != nil {
		return nil, c.errorf("give a pcap or pcapng file, such as tcpdump -w and onpath capture write", "it is no capture: %w", whole(err))
	}
	c.source, c.link = old, old.LinkType()
	return c, nil
}

// whole says of a file's end inside something that it is there.
func whole(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the file ends in the middle of it")
	}
	return err
}

// next is the next packet; io.EOF at the end.
func (c *Capture) next() (*frame, error) {
	data, info, err := c.source.ZeroCopyReadPacketData()
	if errors.Is(err, io.EOF) && info.CaptureLength == 0 {
		if c.n == 0 {
			return nil, c.errorf("capture while there is traffic, and with a filter that it meets", "there is no packet in it")
		}
		return nil, io.EOF
	}
	c.n++
	if err != nil {
		return nil, c.errorf("capture again, or write the packets before it to a file of their own: editcap -r IN OUT 1-N",
			"packet %d cannot be read: %w", c.n, whole(err))
	}
	f := &frame{number: c.n, at: info.Timestamp, link: c.link, data: data, length: max(info.Length, len(data))}
	if c.mixed {
		f.link, _ = info.AncillaryData[0].(layers.LinkType)
	}
	if !f.findIP() {
		return nil, c.errorf("capture at an Ethernet device, or with tcpdump -i any",
			"packet %d has link type %d (%s), which cannot be read", c.n, uint16(f.link), f.link)
	}
	return f, nil
}

// linkHeads are the heads of link types that are read: their bytes, and where in them the
// EtherType stands; -1: IP alone follows.
var linkHeads = map[layers.LinkType]struct{ size, kind int }{
	layers.LinkTypeEthernet:  {14, 12},
	layers.LinkTypeLinuxSLL:  {16, 14},
	layers.LinkTypeLinuxSLL2: {20, 0},
	layers.LinkTypeNull:      {4, -1}, // of BSD's loopback
	layers.LinkTypeLoop:      {4, -1},
	layers.LinkTypeRaw:       {0, -1},
	12:                       {0, -1}, // raw IP, as some systems number it
	14:                       {0, -1},
	layers.LinkTypeIPv4:      {0, -1},
	layers.LinkTypeIPv6:      {0, -1},
}

// findIP finds the IP header behind the link's head and VLAN tags, if there is one. It
// reports false for a link type that is not read.
func (f *frame) findIP() bool {
	link, ok := linkHeads[f.link]
	if !ok {
		return false
	}
	f.head = link.size
	if len(f.data) <= f.head {
		return true
	}
	if link.kind < 0 {
		version := f.data[f.head] >> 4
		f.ip = version == 4 || version == 6
		return true
	}
	kind := binary.BigEndian.Uint16(f.data[link.kind:])
	for (kind == 0x8100 || kind == 0x88a8) && len(f.data) > f.head+4 {
		f.vlan = append(f.vlan, binary.BigEndian.Uint16(f.data[f.head:])&0xfff)
		kind = binary.BigEndian.Uint16(f.data[f.head+2:])
		f.head += 4
	}
	f.ip = kind == packet.TypeIPv4 || kind == packet.TypeIPv6
	return true
}

// packet is the IP packet, whole. What was not captured is zero; captured is how much was. It
// is an error if so little was that the path would read what is missing.
func (f *frame) packet() (ip []byte, captured int, err error) {
	ip = f.data[f.head:]
	captured = len(ip)
	missing := min(f.length-len(f.data), 1<<16) // no IP packet is longer
	if missing <= 0 {
		return ip, captured, nil
	}
	zeros, ones := append([]byte(nil), ip...), append([]byte(nil), ip...)
	for range missing {
		zeros, ones = append(zeros, 0), append(ones, 0xff)
	}
	h := packet.Parse(zeros)
	if h != packet.Parse(ones) {
		return nil, captured, fmt.Errorf("only %d of its %d bytes were captured, too few to read its headers (tcpdump -s 0 captures all)",
			captured, f.length-f.head)
	}
	return zeros, min(captured, h.Length), nil
}
