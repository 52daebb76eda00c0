package lab

import "github.com/onpath/onpath/internal/offload"

// offloadsOff is what the hosts' ends of a link must not leave to the device.
// Names are ethtool's; one that ends in * stands for all that begin so.
func (l *Lab) offloadsOff(link *Link) []string {
	switch {
	case !link.Offloads: // complete frames
		return offload.CompleteFrames
	case link.Shaped() && l.Emulation == EmulateNetem:
		// netem counts and drops what it is given, so it is given segments.
		return []string{"tx-*segmentation", "tx-gso-list"}
	case link.Shaped():
		// Packet sockets have no words for segmentation other than TCP's.
		return []string{"tx-udp*segmentation", "tx-gre*segmentation", "tx-ipxip*segmentation", "tx-sctp-segmentation", "tx-esp-segmentation", "tx-tunnel-remcsum-segmentation", "tx-gso-partial", "tx-gso-list", "tx-gso-robust"}
	}
	return nil
}
