package dns

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// How many questions a second of one network (IPv4 /24, IPv6 /56) are answered by UDP. Of
// those above, every second one is asked to come by TCP, where the source cannot be forged.
const (
	perNetwork   = 1000
	mostNetworks = 1 << 14 // of each of two generations
)

type verdict int

const (
	pass verdict = iota
	truncate
	drop
)

// limiter bounds the answers to each network, in bounded memory: networks are kept in two
// generations, and the older one is forgotten when the younger is full.
type limiter struct {
	now func() time.Time

	mu         sync.Mutex
	young, old map[netip.Prefix]*network
}

type network struct {
	answers *rate.Limiter
	over    uint64
}

func newLimiter(now func() time.Time) *limiter {
	return &limiter{now: now, young: map[netip.Prefix]*network{}}
}

func networkOf(a netip.Addr) netip.Prefix {
	bits := 24
	if a.Is6() {
		bits = 56
	}
	p, _ := a.Prefix(bits)
	return p
}

func (l *limiter) check(a netip.Addr) verdict {
	p := networkOf(a)
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.young[p]
	if n == nil {
		if n = l.old[p]; n == nil {
			n = &network{answers: rate.NewLimiter(perNetwork, perNetwork)}
		}
		if len(l.young) >= mostNetworks {
			l.old, l.young = l.young, map[netip.Prefix]*network{}
		}
		l.young[p] = n
	}
	if n.answers.AllowN(l.now(), 1) {
		return pass
	}
	if n.over++; n.over%2 == 0 {
		return drop
	}
	return truncate
}
