package functest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/onpath/onpath/internal/packet"
)

// Write shows a packet in a line, and what was changed in lines of their own.
func (m *Met) Write(w io.Writer) error {
	arrow := map[string]string{"forward": "→", "reverse": "←"}[m.Direction]
	what := fmt.Sprintf("%d bytes", m.Length)
	if m.ip != nil {
		what = fmt.Sprintf("%s, %d bytes", flow(m.Tuple), m.Length)
	}
	for _, id := range m.VLAN {
		what += fmt.Sprintf(", vlan %d", id)
	}
	if m.Captured > 0 {
		what += fmt.Sprintf(" (%d captured)", m.Captured)
	}
	parts := strings.Split(m.words(), "; ")
	line := fmt.Sprintf("%6d %11.6f %s %s: %s", m.Number, m.After.Seconds(), cmp.Or(arrow, " "), what, parts[0])
	if m.Differs != "" {
		line = fmt.Sprintf("%6d %11.6f %s %s: DIFFERS", m.Number, m.After.Seconds(), arrow, what)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Counts)) {
		line += fmt.Sprintf("  %s %+d", name, m.Counts[name])
	}
	_, err := fmt.Fprintln(w, line)
	for _, part := range parts[1:] {
		_, e := fmt.Fprintf(w, "%21s%s\n", "", part)
		err = errors.Join(err, e)
	}
	return err
}

// Write shows what came of the capture.
func (r *Replayed) Write(w io.Writer) error {
	line := fmt.Sprintf("%d packets on %v:", r.Packets, r.Targets)
	for _, v := range slices.Sorted(maps.Keys(r.Verdicts)) {
		line += fmt.Sprintf(" %d %s,", r.Verdicts[v], v)
	}
	lines := []string{line + fmt.Sprintf(" %d aside; %d edited", r.Aside, r.Edited)}
	if r.Differ > 0 {
		lines = append(lines, fmt.Sprintf("the targets differ on %d packets", r.Differ))
	}
	if r.Guessed > 0 {
		lines = append(lines, fmt.Sprintf("%d packets were captured shorter than the %d bytes that the function is shown: "+
			"the rest was taken as zero (tcpdump -s 0 captures all)", r.Guessed, r.Needs))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Counters)) {
		lines = append(lines, fmt.Sprintf("  %s %d", name, r.Counters[name]))
	}
	for _, t := range Targets {
		if why := r.Lacking[t]; why != "" {
			lines = append(lines, fmt.Sprintf("%s is not tested: %s", t, why))
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// Writer writes what came of packets as pcapng: each with its verdict as its comment.
type Writer struct {
	to    io.Writer
	ng    *pcapgo.NgWriter
	faces map[face]int
}

// face is an interface of the file written: what came out, what was dropped, or what the
// function and onpath sent.
type face struct {
	name string
	link layers.LinkType
}

// NewWriter begins no file before the first packet.
func NewWriter(w io.Writer) *Writer { return &Writer{to: w, faces: map[face]int{}} }

// Write writes a packet as it came out, or as it came in if it did not, and what was sent
// because of it.
func (w *Writer) Write(m *Met) error {
	f, o := m.frame, &m.outcome
	data, length, name := f.data, f.length, "out"
	switch {
	case m.Aside != "":
		name = "aside"
	case o.Packet == nil:
		name = "dropped"
	case len(m.Edits) > 0:
		out := o.Packet
		if m.Captured > 0 && len(out) == m.Length { // not what nobody knows
			out = out[:m.Captured]
		}
		length = f.head + len(o.Packet)
		data = append(slices.Clone(f.data[:f.head]), out...)
	}
	err := w.put(m, face{name, f.link}, data, length, m.words())
	sent := face{"sent", layers.LinkTypeRaw}
	for _, b := range o.Sent {
		err = errors.Join(err, w.put(m, sent, b, len(b), fmt.Sprintf("sent by the function at packet %d", m.Number)))
	}
	if m.Verdict != "answer" {
		return err
	}
	h := packet.Parse(m.ip)
	if b := packet.Refusal(m.ip, &h); b != nil {
		err = errors.Join(err, w.put(m, sent, b, len(b), fmt.Sprintf("the answer to packet %d", m.Number)))
	}
	return err
}

func (w *Writer) put(m *Met, to face, data []byte, length int, comment string) error {
	n, ok := w.faces[to]
	if !ok {
		i := pcapgo.NgInterface{Name: to.name, LinkType: to.link, TimestampResolution: 9}
		var err error
		if w.ng == nil {
			about := pcapgo.NgSectionInfo{Application: "onpath"}
			w.ng, err = pcapgo.NewNgWriterInterface(w.to, i, pcapgo.NgWriterOptions{SectionInfo: about})
		} else {
			n, err = w.ng.AddInterface(i)
		}
		if err != nil {
			return err
		}
		w.faces[to] = n
	}
	at := m.Time
	if at.IsZero() {
		at = time.Unix(0, 0)
	}
	info := gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(data), Length: max(length, len(data)), InterfaceIndex: n}
	return w.ng.WritePacketWithOptions(info, data, pcapgo.NgPacketOptions{Comments: []string{comment}})
}

// Flush writes what is left.
func (w *Writer) Flush() error {
	if w.ng == nil {
		return nil
	}
	return w.ng.Flush()
}
