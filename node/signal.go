package node

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/packet"
	"github.com/onpath/onpath/internal/signalling"
	"github.com/onpath/onpath/signal/gist"
	"github.com/onpath/onpath/signal/nslp"
)

// signaller takes part in signalling: it hands the data path's packets and ICMP errors to
// the machines of signal/, sends what these say, and has leases decide.
type signaller struct {
	a      *Agent
	wanted chan struct{} // the plan may say so now
	come   chan event
	busy   chan struct{} // requests that are being decided on
}

// event is something that the machines are told.
type event func(now time.Time, n *nslp.Node) []nslp.Output

// maxDeciding is how many requests are decided on at once; others wait in the machines.
const maxDeciding = 16

func newSignaller(a *Agent) *signaller {
	return &signaller{a: a, wanted: make(chan struct{}, 1), come: make(chan event, 64), busy: make(chan struct{}, maxDeciding)}
}

// run waits until the plan gives leases, and signals as long as it does.
func (s *signaller) run(ctx context.Context) {
	reader, ok := s.a.opt.Datapath.(onpath.PuntReader)
	if !ok {
		return
	}
	for {
		for s.a.leases.ground().Plan == nil {
			select {
			case <-ctx.Done():
				return
			case <-s.wanted:
			}
		}
		if err := s.signal(ctx, reader); err != nil && ctx.Err() == nil {
			s.a.log.Error("signalling does not work; it is tried again", "err", err)
			if s.a.clock.Sleep(ctx, 5*time.Second) != nil {
				return
			}
		}
	}
}

// identity is the node's name for its peers, which no node of another operator has.
func (s *signaller) identity() string {
	sum := sha256.Sum256([]byte(s.a.boot + "\x00" + s.a.opt.StateDir + "\x00" + s.a.opt.Name))
	return s.a.opt.Name + "-" + hex.EncodeToString(sum[:4])
}

func (s *signaller) signal(ctx context.Context, reader onpath.PuntReader) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sock *signalling.Socket
	open := func() error { sock, err = signalling.Open(gist.Port); return err }
	if s.a.opt.NetNS != "" {
		err = netnsrun.Do(s.a.opt.NetNS, open)
	} else {
		err = open()
	}
	if err != nil {
		return fmt.Errorf("open UDP port %d: %w", gist.Port, err)
	}
	defer sock.Close()
	g, err := gist.New(gist.Config{Peer: s.identity(), Random: rand.Reader, Source: sock.Source})
	if err != nil {
		return err
	}
	n := nslp.NewNode(s.a.opt.Name, g, rand.Reader)
	s.a.goDo(func(context.Context) {
		_ = reader.Punted(ctx, func(p onpath.Punted) { s.tell(ctx, received(p)) })
	})
	s.a.goDo(func(context.Context) {
		sock.Errors(ctx, func(to netip.AddrPort, quoted []byte) {
			q := bytes.Clone(quoted)
			s.tell(ctx, func(now time.Time, n *nslp.Node) []nslp.Output {
				return n.Unreachable(now, gist.Packet{To: to, Payload: q})
			})
		})
	})
	s.a.log.Info("takes part in signalling", "port", gist.Port)
	return s.loop(ctx, n, sock)
}

// tell hands something to the machines. Where too much waits, the data path drops what
// comes at the punt port.
func (s *signaller) tell(ctx context.Context, e event) {
	if e == nil {
		return
	}
	select {
	case s.come <- e:
	case <-ctx.Done():
	}
}

// received is a packet of the punt port.
func received(p onpath.Punted) event {
	h := packet.Parse(p.Packet)
	if h.Verdict != packet.Fine || h.Protocol != packet.UDP || h.Length < h.L4+8 {
		return nil
	}
	in := gist.Packet{
		From: netip.AddrPortFrom(h.Tuple.Src, h.Tuple.SrcPort), To: netip.AddrPortFrom(h.Tuple.Dst, h.Tuple.DstPort),
		Payload: bytes.Clone(p.Packet[h.L4+8 : h.Length]), TTL: h.TTL,
	}
	return func(now time.Time, n *nslp.Node) []nslp.Output { return n.Receive(now, in) }
}

// loop is the only one that touches the machines.
func (s *signaller) loop(ctx context.Context, n *nslp.Node, sock *signalling.Socket) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		if due := n.Due(); !due.IsZero() {
			wait = max(time.Until(due), 0)
		}
		timer.Reset(wait)
		var out []nslp.Output
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-s.come:
			out = e(time.Now(), n)
		case <-timer.C:
			out = n.Tick(time.Now())
		case <-s.wanted:
			if s.a.leases.ground().Plan == nil {
				return nil
			}
		}
		for _, o := range out {
			if o.Send != nil {
				if err := sock.Send(o.Send.From, o.Send.To, o.Send.Payload); err != nil {
					s.a.log.Debug("a signalling message cannot be sent", "to", o.Send.To, "err", err)
				}
			} else if o.Ask != nil {
				s.ask(ctx, o.Ask)
			}
		}
	}
}

// ask has a request decided on, and hands the answer back.
func (s *signaller) ask(ctx context.Context, q *nslp.Ask) {
	if q.Refused != nil {
		s.a.leases.refused(q.Message, q.Refused)
		return
	}
	select {
	case s.busy <- struct{}{}:
	default:
		return // it is asked again
	}
	s.a.goDo(func(context.Context) {
		defer func() { <-s.busy }()
		e := s.a.leases.decide(ctx, q.Message)
		s.tell(ctx, func(now time.Time, n *nslp.Node) []nslp.Output { return n.Answer(now, q.Key, e) })
	})
}
