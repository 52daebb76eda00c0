package signalling

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

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
	sock, err := Open(0)
	if err != nil {
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
	r, out, err := nslp.NewRequester(time.Now(), g, k, m, o.Timeout)
	if err != nil {
		return nil, err
	}
	return run(ctx, sock, r, out)
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
	m.Sign(o.Key, time.Now(), nonce)
	if !o.Wrap {
		return m, nil
	}
	if _, err := rand.Read(outer[:]); err != nil {
		return nil, err
	}
	t := &nslp.Message{Type: nslp.Trigger, Wrapped: m.Append(nil), Flow: f}
	t.Sign(o.Key, time.Now(), outer)
	return t, nil
}

func run(ctx context.Context, sock *Socket, r *nslp.Requester, out []gist.Datagram) (*nslp.Message, error) {
	buffer := make([]byte, 1<<16)
	for {
		for _, d := range out {
			if err := sock.Send(d.From, d.To, d.Payload); err != nil {
				return nil, fmt.Errorf("send to %s: %w", d.To, err)
			}
		}
		out = nil
		if r.Response != nil || r.Err != nil {
			return r.Response, r.Err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		until := r.Due()
		if tick := time.Now().Add(time.Second); tick.Before(until) { // for ctx
			until = tick
		}
		n, from, err := sock.Receive(buffer, until)
		switch {
		case err == nil && n > 0:
			out = r.Receive(time.Now(), gist.Packet{From: from, Payload: buffer[:n]})
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			var op *net.OpError
			if !errors.As(err, &op) || !op.Temporary() {
				return nil, err
			}
		}
		for sock.Error(func(to netip.AddrPort, quoted []byte) {
			out = append(out, r.Unreachable(time.Now(), gist.Packet{To: to, Payload: quoted})...)
		}) {
		}
		out = append(out, r.Tick(time.Now())...)
	}
}
