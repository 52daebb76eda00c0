package fake

import (
	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/packet"
)

// piece is what a TCP packet in one piece stands for: packets on the wire, each with
// the headers, as kernels pass them on (GSO). The zero value is a packet itself.
type piece struct {
	packets int
	headers int // bytes
	largest int // bytes of IP
}

// InjectSegments puts a frame in whose TCP packet stands for several that carry size
// bytes of its payload each, the last one the rest.
func (n *Node) InjectSegments(device string, raw []byte, size int) {
	n.net.mu.Lock()
	defer n.net.release()
	f, ok := parseFrame(append([]byte(nil), raw...))
	if !ok {
		return
	}
	h := packet.Parse(f.payload)
	if h.Verdict == packet.Fine && h.Protocol == packet.TCP && h.Whole() {
		headers := h.L4 + int(f.payload[h.L4+12]>>4)*4
		n.piece = piece{(h.Length - headers + size - 1) / size, headers, size + headers}
	}
	n.frameIn(device, f)
	n.piece = piece{}
}

// pieces is how many packets the one being worked on stands for.
func (n *Node) pieces() uint64 { return uint64(max(1, n.piece.packets)) }

// wire is how many bytes of IP a packet of that many takes on the wire.
func (n *Node) wire(bytes int) uint64 {
	return uint64(bytes + int(n.pieces()-1)*n.piece.headers)
}

func (n *Node) add(t *onpath.Tally, bytes int) {
	t.Packets += n.pieces()
	t.Bytes += n.wire(bytes)
}

// longest is the length of the longest packet on the wire, in bytes of IP.
func (n *Node) longest(h *packet.Header) int {
	if n.piece.packets > 0 {
		return n.piece.largest
	}
	return h.Length
}

// leastInterface is what any instance's interface takes, in bytes of IP.
const leastInterface = 1500

// divisible tells IPv4 packets without DF that fit all interfaces: tunnels carry them in
// fragments.
func (n *Node) divisible(h *packet.Header) bool {
	return !h.V6 && !h.DF && n.piece.packets == 0 && h.Length <= leastInterface
}
