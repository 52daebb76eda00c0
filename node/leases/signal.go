package leases

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/packet"
	"github.com/onpath/onpath/internal/signalling"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/punt"
	"github.com/onpath/onpath/signal/gist"
	"github.com/onpath/onpath/signal/nslp"
)

// signaller takes part in signalling: it hands the data path's packets and ICMP errors to
// the machines of signal/, sends what these say, and has leases decide.
type signaller struct {
	part   *base.Part
	leases *Leases
	punts  *punt.Port
	wanted chan struct{} // the plan may say so now
	come   chan event
	// deciding are the requests that are decided on now, waiting those that will be; the loop
	// alone touches them.
	deciding deciding
	waiting  []*nslp.Ask
}

// deciding are requests at work, by their keys: who has how many.
type deciding map[string]requests

type requests struct {
	known bool // the key is a tenant's
	count int
}

// event is something that the machines are told.
type event func(now time.Time, n *nslp.Node) []nslp.Output

// maxDeciding is how many requests are decided on at once, maxWaiting how many wait. A
// publisher whose server is slow takes up some seconds: of one key are a quarter, of keys
// that are no tenant's a half.
const (
	maxWaiting  = 256
	maxDeciding = 16
)

// begin takes a request up, if there is room for it.
func (d deciding) begin(key string, known bool) bool {
	all, strangers := 0, 0
	for _, r := range d {
		all += r.count
		if !r.known {
			strangers += r.count
		}
	}
	if all >= maxDeciding || d[key].count >= maxDeciding/4 || !known && strangers >= maxDeciding/2 {
		return false
	}
	d[key] = requests{known, d[key].count + 1}
	return true
}

func (d deciding) end(key string) {
	if r := d[key]; r.count > 1 {
		d[key] = requests{r.known, r.count - 1}
	} else {
		delete(d, key)
	}
}

func newSignaller(l *Leases, punts *punt.Port) *signaller {
	return &signaller{part: l.part, leases: l, punts: punts, wanted: make(chan struct{}, 1), come: make(chan event, 64)}
}

// run waits until the plan gives leases, and signals as long as it does.
func (s *signaller) run(ctx context.Context) {
	if _, ok := s.part.Datapath.(onpath.PuntReader); !ok {
		return
	}
	for ctx.Err() == nil {
		for s.leases.ground().Plan == nil {
			select {
			case <-ctx.Done():
				return
			case <-s.wanted:
			}
		}
		if err := s.signal(ctx); err != nil && ctx.Err() == nil {
			s.part.Log.Error("signalling does not work; it is tried again", "err", err)
			if s.part.Clock.Sleep(ctx, 5*time.Second) != nil {
				return
			}
		}
	}
}

// identity is the node's name for its peers, which no node of another operator has.
func (s *signaller) identity() string {
	sum := sha256.Sum256([]byte(base.BootID() + "\x00" + string(s.part.Dir) + "\x00" + s.part.Node))
	return s.part.Node + "-" + hex.EncodeToString(sum[:4])
}

func (s *signaller) signal(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sock *signalling.Socket
	var listener net.Listener
	var deaf error // why no connections are taken
	if err = netnsrun.Do(s.part.NetNS, func() error {
		if listener, deaf = net.ListenTCP("tcp", &net.TCPAddr{Port: gist.Port}); deaf != nil {
			listener = nil
		}
		sock, err = signalling.Open(gist.Port)
		return err
	}); err != nil {
		if listener != nil {
			listener.Close()
		}
		return fmt.Errorf("open UDP port %d: %w", gist.Port, err)
	}
	defer sock.Close()
	streams := signalling.NewStreams(ctx, signalling.StreamsConfig{
		Listener: listener, In: func(do func() error) error { return netnsrun.Do(s.part.NetNS, do) },
		Take: func(p gist.Packet) {
			s.tell(ctx, func(now time.Time, n *nslp.Node) []nslp.Output { return n.Receive(now, p) })
		},
		Ended: func(remote netip.AddrPort, failed bool) {
			s.tell(ctx, func(now time.Time, n *nslp.Node) []nslp.Output { return n.Ended(now, remote, failed) })
		},
	})
	defer streams.Wait()
	defer cancel()
	c := gist.Config{Peer: s.identity(), Random: rand.Reader, Source: sock.Source, TCPPort: gist.Port}
	if listener == nil {
		c.TCPPort = 0
		s.part.Log.Warn("signalling takes no messages longer than a datagram: TCP port 270 cannot be opened", "err", deaf)
	}
	g, err := gist.New(c)
	if err != nil {
		return err
	}
	key, err := answersKey(s.part.Dir)
	if err != nil {
		return err
	}
	n := nslp.NewNode(time.Now(), nslp.Config{Name: s.part.Node, GIST: g, Random: rand.Reader, Key: key, Known: func(key []byte) bool {
		_, known, _ := s.leases.ground().Publisher(key)
		return known
	}})
	s.deciding, s.waiting = deciding{}, nil
	s.punts.Hear(ctx, func(p onpath.Punted) { s.offer(received(p)) })
	s.part.Go(func(context.Context) {
		sock.Hear(ctx, func(to netip.AddrPort, quoted []byte) {
			q := bytes.Clone(quoted)
			s.tell(ctx, func(now time.Time, n *nslp.Node) []nslp.Output {
				return n.Unreachable(now, gist.Packet{To: to, Payload: q})
			})
		}, func(p gist.Packet) {
			// The data path leaves Errors to the socket, as they are of no signalling application, and
			// hands all else over.
			if !gist.OfNone(p.Payload) {
				return
			}
			s.offer(func(now time.Time, n *nslp.Node) []nslp.Output { return n.Receive(now, p) })
		})
	})
	public := base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))
	s.part.Log.Info("takes part in signalling", "port", gist.Port, "key", public)
	return s.loop(ctx, n, sock, streams)
}

// answersKey is the key by which the node signs its answers: publishers know the node by it,
// so it stays as long as the folder.
func answersKey(d base.Dir) (ed25519.PrivateKey, error) {
	file := d.File("answers.key")
	key, err := signalling.ReadKey(file)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = signalling.MakeKey(file)
	}
	if err != nil {
		return nil, fmt.Errorf("the key that signs answers to publishers: %w", err)
	}
	return key, nil
}

// offer hands something to the machines, unless too much waits: the punt port has others' packets, too.
func (s *signaller) offer(e event) {
	if e == nil {
		return
	}
	select {
	case s.come <- e:
	default:
	}
}

// tell hands something to the machines.
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
func (s *signaller) loop(ctx context.Context, n *nslp.Node, sock *signalling.Socket, streams *signalling.Streams) error {
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
			if s.leases.ground().Plan == nil {
				return nil
			}
		}
		for len(out) > 0 {
			o := out[0]
			out = out[1:]
			switch {
			case o.End != nil:
				streams.End(*o.End)
			case o.Send != nil && o.Send.Stream:
				streams.Send(o.Send)
			case o.Send != nil:
				if err := sock.Send(o.Send.From, o.Send.To, o.Send.Payload); err != nil {
					s.part.Log.Debug("a signalling message cannot be sent", "to", o.Send.To, "err", err)
				}
			case o.Ask != nil:
				out = append(out, s.ask(ctx, n, o.Ask)...)
			}
		}
	}
}

// ask has a request decided on, and hands the answer back.
func (s *signaller) ask(ctx context.Context, n *nslp.Node, q *nslp.Ask) []nslp.Output {
	if q.Refused != nil {
		s.leases.refused(q.Message, q.Refused)
		return nil
	}
	if s.begin(ctx, q) {
		return nil
	}
	if len(s.waiting) < maxWaiting {
		s.waiting = append(s.waiting, q)
		return nil
	}
	r := &nslp.Refusal{Reason: "Busy", Words: "too many requests wait to be decided on here"}
	return n.Answer(time.Now(), q, s.leases.refused(q.Message, r))
}

// begin has a request decided on, if there is room beside those that are.
func (s *signaller) begin(ctx context.Context, q *nslp.Ask) bool {
	key := string(q.Message.Key)
	_, known, _ := s.leases.ground().Publisher(q.Message.Key)
	if !s.deciding.begin(key, known) {
		return false
	}
	s.part.Go(func(context.Context) {
		e := s.leases.decide(ctx, q)
		s.tell(ctx, func(now time.Time, n *nslp.Node) []nslp.Output {
			s.deciding.end(key)
			s.waiting = slices.DeleteFunc(s.waiting, func(q *nslp.Ask) bool { return !n.Undecided(q) || s.begin(ctx, q) })
			return n.Answer(now, q, e)
		})
	})
	return true
}
