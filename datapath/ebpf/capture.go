package ebpf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cilium/ebpf/perf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/onpath/onpath"
)

// captureBuffer is the size of each CPU's buffer of captured packets.
const captureBuffer = 1 << 20

// capturer is the capture that runs; there is one at a time.
type capturer struct {
	vport  onpath.VportID
	length int
}

// capturing is what the programs are told to copy.
func (d *Driver) capturing() (vport, length uint32) {
	if d.capturer == nil {
		return 0, 0
	}
	return uint32(d.capturer.vport), uint32(d.capturer.length)
}

// Capture implements onpath.Datapath. Frames are as the data path saw them: what
// goes to a vport with the addresses it is delivered with. One capture can run
// at a time; a second one is refused.
func (d *Driver) Capture(ctx context.Context, s onpath.CaptureSpec, w io.Writer) error {
	if err := d.startCapture(&s); err != nil {
		return err
	}
	defer d.endCapture()
	r, err := perf.NewReader(d.coll.Maps["captures"], captureBuffer)
	if err != nil {
		return fmt.Errorf("open capture buffers: %w", err)
	}
	defer r.Close()
	if err := d.tellCapture(); err != nil {
		return err
	}
	out, err := newPcap(w, s.Vport)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { r.Flush() })
	defer stop()
	err = copyPackets(r, out, &s)
	return errors.Join(err, out.Flush())
}

func (d *Driver) startCapture(s *onpath.CaptureSpec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.errClosed()
	}
	if d.coll == nil {
		return onpath.Errorf(onpath.CodeUnavailable, "nothing is applied on this node")
	}
	if d.capturer != nil {
		e := onpath.Errorf(onpath.CodeConflict, "vport %d is being captured on this node already", d.capturer.vport)
		e.Remedy = "end that capture first; a node takes one at a time"
		return e
	}
	if _, ok := d.slots.vports.of[s.Vport]; !ok {
		return onpath.Errorf(onpath.CodeNotFound, "this node's data path has no vport %d", s.Vport)
	}
	d.capturer = &capturer{vport: s.Vport, length: s.Length}
	return nil
}

// tellCapture switches the copying on or off in the programs.
func (d *Driver) tellCapture() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.maps == nil {
		return nil // removed meanwhile
	}
	n := d.maps.nodes.now[0]
	n.Capture, n.CaptureLength = d.capturing()
	return errors.Join(d.maps.nodes.put(0, n), d.writeFast())
}

func (d *Driver) endCapture() {
	d.mu.Lock()
	d.capturer = nil
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return
	}
	if err := d.tellCapture(); err != nil {
		d.opts.Log.Warn("packets are copied for a capture that has ended", "error", err)
	}
}

func newPcap(w io.Writer, v onpath.VportID) (*pcapgo.NgWriter, error) {
	face := pcapgo.NgInterface{
		Name: fmt.Sprintf("vport %d", v), Description: onpath.DeviceName(v), LinkType: layers.LinkTypeEthernet,
		TimestampResolution: 9,
	}
	out, err := pcapgo.NewNgWriterInterface(w, face, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "onpath"}})
	if err != nil {
		return nil, fmt.Errorf("write capture: %w", err)
	}
	face.Name += onpath.CapturedOut
	if _, err := out.AddInterface(face); err != nil {
		return nil, fmt.Errorf("write capture: %w", err)
	}
	return out, out.Flush()
}

// copyPackets writes captured packets until the reader is flushed or the count is reached.
func copyPackets(r *perf.Reader, out *pcapgo.NgWriter, s *onpath.CaptureSpec) error {
	offset := time.Now().Add(-time.Duration(monotonic())) // monotonic zero on the wall clock
	for n := 0; s.Count == 0 || n < s.Count; {
		rec, err := r.Read()
		if errors.Is(err, perf.ErrFlushed) || errors.Is(err, perf.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read capture: %w", err)
		}
		h, frame, ok := splitRecord(rec.RawSample)
		if !ok || (s.Tuple != nil && !tupleMatches(s.Tuple, frame)) {
			continue
		}
		n++
		info := gopacket.CaptureInfo{
			Timestamp: offset.Add(time.Duration(h.At)), Length: int(h.Length), CaptureLength: len(frame),
			InterfaceIndex: int(h.Out & 1),
		}
		if err := out.WritePacket(info, frame); err != nil {
			return fmt.Errorf("write capture: %w", err)
		}
		if err := out.Flush(); err != nil {
			return fmt.Errorf("write capture: %w", err)
		}
	}
	return nil
}

const capturedHeadSize = 24

func splitRecord(b []byte) (h capturedHead, frame []byte, ok bool) {
	if len(b) < capturedHeadSize {
		return h, nil, false
	}
	h = capturedHead{
		At:     binary.LittleEndian.Uint64(b),
		Vport:  binary.LittleEndian.Uint32(b[8:]),
		Length: binary.LittleEndian.Uint32(b[12:]),
		Kept:   binary.LittleEndian.Uint32(b[16:]),
		Out:    binary.LittleEndian.Uint32(b[20:]),
	}
	frame = b[capturedHeadSize:]
	if int(h.Kept) > len(frame) {
		return h, nil, false
	}
	return h, frame[:h.Kept], true
}

// tupleMatches reads the frame's tuple and compares, either way round.
func tupleMatches(want *onpath.Tuple, frame []byte) bool {
	t, ok := frameTuple(frame)
	return ok && onpath.FlowFilter{Tuple: want}.Matches(onpath.FlowEntry{Tuple: t})
}
