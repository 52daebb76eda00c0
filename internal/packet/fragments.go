package packet

import "github.com/onpath/onpath"

// Fragments remembers the first fragments of datagrams: those behind them have no ports of
// their own. The zero value is ready.
type Fragments struct {
	now, before map[fragment]first
}

// fragment is what the fragments of a datagram share. IPv6 has no protocol there (RFC 8200
// §4.5).
type fragment struct {
	ends onpath.Tuple
	id   uint32
}

type first struct {
	tuple onpath.Tuple
	at    uint64 // ns
}

const (
	fragmentLife  = 60_000_000_000 // ns (RFC 1122 §3.3.2)
	mostFragments = 4096           // of each generation
)

// Join gives a fragment the tuple of its first, at a time in ns. A fragment whose first did
// not come stays as it is.
func (f *Fragments) Join(h *Header, now uint64) {
	if !h.Fragment || h.IsError {
		return
	}
	k := fragment{onpath.Tuple{Src: h.Tuple.Src, Dst: h.Tuple.Dst, Protocol: h.Protocol}, h.ID}
	if h.V6 {
		k.ends.Protocol = 0
	}
	if !h.First {
		known, ok := f.now[k]
		if !ok {
			known, ok = f.before[k]
		}
		if ok && now-known.at <= fragmentLife {
			h.Follow(known.tuple)
		}
		return
	}
	if h.Verdict != Fine {
		return
	}
	if f.now == nil || len(f.now) >= mostFragments {
		f.now, f.before = map[fragment]first{}, f.now
	}
	f.now[k] = first{h.Tuple, now}
}

// Follow gives a fragment behind the first the tuple of that.
func (h *Header) Follow(first onpath.Tuple) {
	h.Tuple, h.Protocol, h.Verdict = first, first.Protocol, Fine
}
