package ebpf

import (
	"time"

	"github.com/onpath/onpath"
)

// rateValue is a limit of one direction of a vport (bpf/lib/rate.h). Due is the programs':
// a limit that changes begins with its burst.
type rateValue struct {
	Byte  uint64 // 2^-(rateShift+rateFiner) ns
	Ahead uint64 // 2^-rateShift ns
	Due   uint64
	More  uint64 // bytes that each packet counts beside its own
}

const (
	rateShift = 4
	rateFiner = 12
	rateIn    = 0
	rateOut   = 1
	rateWays  = 2
)

// rateOf is a limit in bit/s as the programs know it.
func rateOf(bits uint64) rateValue {
	return rateOfBytes(max(1, uint64(8*time.Second)<<(rateShift+rateFiner)/bits), onpath.RateBurst(bits))
}

// rateOfBytes is a limit at which a byte takes so long, and so many may pass at once.
func rateOfBytes(byte, burst uint64) rateValue {
	return rateValue{Byte: byte, Ahead: burst * byte >> rateFiner}
}

// rates adds the limits of a vport in a slot.
func (k *compiler) rates(p *onpath.Vport, slot uint32) {
	for way, bits := range [rateWays]uint64{rateIn: p.RateIn, rateOut: p.RateOut} {
		if bits != 0 {
			k.st.rates[slot*rateWays+uint32(way)] = rateOf(bits)
		}
	}
}
