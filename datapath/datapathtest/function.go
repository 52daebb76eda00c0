package datapathtest

import (
	_ "embed" // for the object
	"net/netip"

	"github.com/onpath/onpath"
)

//go:generate make -C ../../bpf ../datapath/datapathtest/exam_bpfel.o ../datapath/datapathtest/redirect_bpfel.o

// ExamObject is the object file of the exam's ebpf function.
//
//go:embed exam_bpfel.o
var ExamObject []byte

// RedirectObject is one that sends packets forward to the element n of their chain
// which go to port 7000 + n.
//
//go:embed redirect_bpfel.o
var RedirectObject []byte

// Ports of the far end by which the exam's function judges.
const (
	droppedPort    = 6666
	refusedPort    = 6667
	translatedPort = 6668 // at the virtual address
	behindPort     = 6669 // at the server's
	stampedPort    = 7100
	leftoverPort   = 7300 // it drops short packets if it sees bytes of another packet behind them
	scribbledPort  = 7200 // it writes in its description what is not so, and passes the packet
)

// Classes of service by which it judges, in the middle of a flow.
const (
	droppedClass = 60
	refusedClass = 61
	behindClass  = 62 // refused once it is translated
)

// FunctionAction is what the exam's function does with a packet.
type FunctionAction struct {
	Drop, Refuse bool
	Reason       uint8
	Src, Dst     netip.AddrPort
	DSCP         *uint8
}

// ExamFunction is the exam's function (bpf/exam.bpf.c) in Go: it drops and refuses by
// ports and classes of service, translates one, and shifts two bits of its instance's number into the
// DSCP of another, so that a packet shows by which functions it has come.
func ExamFunction(v onpath.VportID, t onpath.Tuple, reverse bool, dscp uint8) (a FunctionAction) {
	there := t.DstPort
	if reverse {
		there = t.SrcPort
	}
	switch {
	case dscp == droppedClass:
		a.Drop, a.Reason = true, 7
	case dscp == refusedClass:
		a.Refuse, a.Reason = true, 8
	case dscp == behindClass && there == behindPort && !reverse:
		a.Refuse, a.Reason = true, 9
	case there == droppedPort:
		a.Drop, a.Reason = true, 5
	case there == refusedPort:
		a.Refuse, a.Reason = true, 6
	case there == translatedPort && !reverse:
		a.Dst = netip.AddrPortFrom(server, behindPort)
	case there == behindPort && reverse:
		a.Src = netip.AddrPortFrom(virtual, translatedPort)
	case there == stampedPort:
		d := (dscp<<2 | uint8(v&3)) & 63
		a.DSCP = &d
	}
	return a
}
