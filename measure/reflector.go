package measure

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

// reflectRate bounds what strangers may have a node check, packets/s; the nodes of an
// operator need far less.
const reflectRate = 10_000

// Reflector answers other nodes' questions.
type Reflector struct {
	conn    *net.UDPConn
	request []byte
	reply   []byte
	rate    *rate.Limiter
	done    chan struct{}
}

// NewReflector answers at an address until it is closed. Packets that are not signed with
// the nodes' secret are dropped.
func NewReflector(at netip.AddrPort, secret []byte) (*Reflector, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("answer measurements at %s: %w", at, err)
	}
	r := &Reflector{conn: conn, request: requestKey(secret), reply: replyKey(secret),
		rate: rate.NewLimiter(reflectRate, reflectRate/10), done: make(chan struct{})}
	go r.serve()
	return r, nil
}

// Close ends it.
func (r *Reflector) Close() error {
	err := r.conn.Close()
	<-r.done
	return err
}

func (r *Reflector) serve() {
	defer close(r.done)
	buf := make([]byte, packetSize+1)
	for sequence := uint32(0); ; {
		n, from, err := r.conn.ReadFromUDPAddrPort(buf)
		received := time.Now()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || !r.rate.Allow() {
			continue
		}
		asked, err := decodeRequest(buf[:n], r.request)
		if err != nil {
			continue
		}
		answer := reply{sequence: sequence, received: ntp(received), request: asked}
		answer.sent = ntp(time.Now())
		if _, err := r.conn.WriteToUDPAddrPort(answer.encode(r.reply), from); err == nil {
			sequence++
		}
	}
}
