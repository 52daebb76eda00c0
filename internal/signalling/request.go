package signalling

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/signal/gist"
	"github.com/onpath/onpath/signal/nslp"
)

// Options are a request's.
type Options struct {
	Toward  netip.Addr
	From    netip.Addr // zero: by route
	Key     ed25519.PrivateKey
	Timeout time.Duration
	// Wrap sends the request in a TRIGGER: the last node sends it back.
	Wrap bool
	// NetNS is the network namespace from which it is sent; empty: the process's own.
	NetNS string
	// Nodes are those whose keys are known; nil: each is believed that signs.
	Nodes *Nodes
}

// Request signs a request, sends it toward an address, and waits for the stack of answers.
func Request(ctx context.Context, m *nslp.Message, o Options) (*nslp.Message, error) {
	return withSocket(o, func(sock *Socket, f nslp.Flow) (*nslp.Message, error) {
		signed, err := sign(m, o, f)
		if err != nil {
			return nil, err
		}
		return send(ctx, sock, f, signed, o)
	})
}

// Send sends a request that is signed, and waits for the stack of answers.
func Send(ctx context.Context, m *nslp.Message, o Options) (*nslp.Message, error) {
	return withSocket(o, func(sock *Socket, f nslp.Flow) (*nslp.Message, error) { return send(ctx, sock, f, m, o) })
}

// withSocket opens one for the flow along which a request goes.
func withSocket(o Options, do func(*Socket, nslp.Flow) (*nslp.Message, error)) (*nslp.Message, error) {
	var sock *Socket
	if err := netnsrun.Do(o.NetNS, func() (err error) { sock, err = Open(0); return err }); err != nil {
		return nil, err
	}
	defer sock.Close()
	from := o.From
	if !from.IsValid() {
		from = sock.Source(o.Toward)
	}
	if !from.IsValid() || from.Is4() != o.Toward.Is4() {
		return nil, fmt.Errorf("this machine has no route to %s", o.Toward)
	}
	return do(sock, nslp.Flow{Source: from, Destination: o.Toward})
}

func send(ctx context.Context, sock *Socket, f nslp.Flow, m *nslp.Message, o Options) (*nslp.Message, error) {
	var session gist.SessionID
	if _, err := rand.Read(session[:]); err != nil {
		return nil, err
	}
	g, err := gist.New(gist.Config{
		Peer: "requester-" + hex.EncodeToString(session[:4]), Random: rand.Reader, Initiates: true,
		Source: func(netip.Addr) netip.Addr { return f.Source }, // the first node believes no other
	})
	if err != nil {
		return nil, err
	}
	k := gist.Key{Flow: gist.Toward(f.Source, f.Destination), Session: session}
	r, out, err := nslp.NewRequester(clock(), g, k, m, o.Timeout)
	if err != nil {
		return nil, err
	}
	response, err := run(ctx, sock, r, out, func(do func() error) error { return netnsrun.Do(o.NetNS, do) })
	if err != nil {
		return nil, err
	}
	nodes := o.Nodes
	if nodes == nil {
		nodes = &Nodes{keys: map[string][][]byte{}}
	}
	r.Prove(nodes.Known, nodes.Learn)
	return response, nil
}

// sign signs a request for a flow. One that is sent back goes the other way.
func sign(m *nslp.Message, o Options, f nslp.Flow) (*nslp.Message, error) {
	var nonce, outer nslp.Nonce
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, err
	}
	m.Flow = f
	if o.Wrap {
		m.Flow = f.Inverted()
	}
	m.Sign(o.Key, clock(), nonce)
	if !o.Wrap {
		return m, nil
	}
	if _, err := rand.Read(outer[:]); err != nil {
		return nil, err
	}
	t := &nslp.Message{Type: nslp.Trigger, Wrapped: m.Append(nil), Flow: f}
	t.Sign(o.Key, clock(), outer)
	return t, nil
}

// run is the requester's loop: it alone touches the machine.
func run(ctx context.Context, sock *Socket, r *nslp.Requester, out []gist.Datagram, in func(func() error) error) (*nslp.Message, error) {
	come := make(chan func(now time.Time) []gist.Datagram, 64)
	ctx, cancel := context.WithCancel(ctx)
	tell := func(do func(now time.Time) []gist.Datagram) {
		select {
		case come <- do:
		case <-ctx.Done():
		}
	}
	heard := func(p gist.Packet) { tell(func(now time.Time) []gist.Datagram { return r.Receive(now, p) }) }
	streams := NewStreams(ctx, StreamsConfig{In: in, Take: heard, Ended: func(remote netip.AddrPort, failed bool) {
		tell(func(now time.Time) []gist.Datagram { return r.Ended(now, remote, failed) })
	}})
	defer streams.Wait()
	defer cancel()
	go sock.Hear(ctx, func(to netip.AddrPort, quoted []byte) {
		q := bytes.Clone(quoted)
		tell(func(now time.Time) []gist.Datagram { return r.Unreachable(now, gist.Packet{To: to, Payload: q}) })
	}, heard)
	for {
		for _, d := range out {
			if d.Stream {
				streams.Send(&d)
			} else if err := sock.Send(d.From, d.To, d.Payload); err != nil {
				return nil, fmt.Errorf("send to %s: %w", d.To, err)
			}
		}
		if r.Response != nil || r.Err != nil {
			return r.Response, r.Err
		}
		timer := time.NewTimer(r.Due().Sub(clock()))
		select {
		case do := <-come:
			out = do(clock())
		case <-timer.C:
			out = nil
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
		out = append(out, r.Tick(clock())...)
	}
}
