package nslp

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onpath/onpath/signal/gist"
)

// Requester sends one request, and waits for the response.
type Requester struct {
	gist    *gist.Endpoint
	key     gist.Key
	payload []byte
	nonce   Nonce
	again   time.Time // when it sends again
	wait    time.Duration
	until   time.Time
	// part is a response after which another may come, that has more; until enough it is waited for.
	part   *Message
	enough time.Time

	// Response is the answer, Err why there is none; until one is set it is not over.
	Response *Message
	Err      error
}

// ErrNobody says that no node on the way answers.
var ErrNobody = errors.New("no onpath node on the way takes signalling messages")

// again is how long a requester waits before it sends again, then twice as long, and so on.
const again = time.Second

// more is how long a requester waits for a response that has more than the one that came, or
// so many round trips to the first node.
const (
	more      = 2 * time.Second
	moreTrips = 4
)

// NewRequester begins to send a signed request along a flow.
func NewRequester(now time.Time, g *gist.Endpoint, k gist.Key, m *Message, timeout time.Duration) (*Requester, []gist.Datagram, error) {
	r := &Requester{gist: g, key: k, payload: m.Append(nil), nonce: m.Nonce, until: now.Add(timeout), wait: again}
	if len(r.payload) > MaxLength {
		return nil, nil, fmt.Errorf("the request has %d bytes; at most %d fit into one datagram: shorten its properties",
			len(r.payload), MaxLength)
	}
	return r, r.send(now), r.Err
}

func (r *Requester) send(now time.Time) []gist.Datagram {
	r.again, r.wait = now.Add(r.wait), 2*r.wait
	out, err := r.gist.Down(now, r.key, gist.DefaultHops, r.payload)
	if err != nil {
		r.Err = err
	}
	return r.follow(now, out)
}

// Receive takes a datagram in.
func (r *Requester) Receive(now time.Time, p gist.Packet) []gist.Datagram {
	return r.follow(now, r.gist.Receive(now, p))
}

// Unreachable is told of an ICMP port unreachable.
func (r *Requester) Unreachable(now time.Time, p gist.Packet) []gist.Datagram {
	return r.follow(now, r.gist.Unreachable(now, p.To, p.Payload))
}

// Due is when Tick has something to do.
func (r *Requester) Due() time.Time {
	at := earlier(r.until, r.again)
	if r.part != nil {
		at = earlier(r.until, r.enough)
	}
	if d := r.gist.Due(); !d.IsZero() && d.Before(at) {
		at = d
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Tick does what is due at now.
func (r *Requester) Tick(now time.Time) []gist.Datagram {
	out := r.follow(now, r.gist.Tick(now))
	switch {
	case r.Response != nil || r.Err != nil:
	case r.part != nil && !now.Before(earlier(r.enough, r.until)):
		r.Response = r.part
	case !now.Before(r.until):
		r.Err = errors.New("a node on the way takes the request, but no response comes back: its onpath may be too old to read it")
	case !now.Before(r.again) && r.part == nil:
		out = append(out, r.send(now)...)
	}
	return out
}

func (r *Requester) follow(now time.Time, in []gist.Output) (out []gist.Datagram) {
	for _, o := range in {
		switch {
		case o.Send != nil:
			out = append(out, *o.Send)
		case o.Last != nil && *o.Last == r.key:
			r.Err = ErrNobody
		case o.Failed != nil && o.Failed.Key == r.key:
			r.Err = o.Failed.Error
		case o.Deliver != nil && !o.Deliver.Upstream && o.Deliver.Key == r.key:
			r.take(now, o.Deliver)
		}
	}
	return out
}

func (r *Requester) take(now time.Time, d *gist.Delivery) {
	m, err := Parse(d.Payload)
	if err != nil || m.Type != Response || m.Nonce != r.nonce {
		return
	}
	peer, ok := r.gist.Next(r.key)
	if ok && len(m.Stack) > 0 {
		m.Stack[0].RTT, m.Stack[0].Address = peer.RTT, peer.Address.Addr()
	}
	switch {
	case !strings.HasPrefix(m.Status, NoAnswer):
		r.Response = m
	case r.part == nil || count(m.Stack) > count(r.part.Stack):
		r.part, r.enough = m, now.Add(max(more, moreTrips*peer.RTT))
	}
}
