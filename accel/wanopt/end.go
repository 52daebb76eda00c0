package wanopt

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config is one end.
type Config struct {
	// Pair is the file that says who the partner is; it is read for each connection.
	Pair string
	// Take is the port where the kernel hands over connections that are to be taken over,
	// Link that of the partner.
	Take, Link uint16
	Memory     int64 // bytes of chunks kept
	Log        *slog.Logger
}

// patience is how long the partner may take to answer, and a server to be connected to.
const patience = 10 * time.Second

// end is this end.
type end struct {
	Config
	store *store
	epoch id // of this end's store: a new process has another one
}

// partner is what the file says of it.
type partner struct {
	Secret    string
	Addresses []netip.Addr
	Partner   struct{ Addresses []netip.Addr }
}

func (e *end) partner() (p partner, err error) {
	data, err := os.ReadFile(e.Pair)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return p, fmt.Errorf("%s: %w", e.Pair, err)
	}
	if p.Secret == "" || len(p.Partner.Addresses) == 0 || len(p.Addresses) == 0 {
		return p, fmt.Errorf("%s names no partner", e.Pair)
	}
	return p, nil
}

// Run takes connections over until ctx ends.
func Run(ctx context.Context, c Config) error {
	e := &end{Config: c, store: newStore(c.Memory)}
	if _, err := rand.Read(e.epoch[:]); err != nil {
		return err
	}
	transparent := net.ListenConfig{Control: func(network, _ string, raw syscall.RawConn) error { return control(raw, network, false) }}
	taken, err := transparent.Listen(ctx, "tcp", fmt.Sprintf("[::]:%d", c.Take))
	if err != nil {
		return fmt.Errorf("listen for connections to take over: %w", err)
	}
	linked, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("[::]:%d", c.Link))
	if err != nil {
		return fmt.Errorf("listen for the partner: %w", err)
	}
	context.AfterFunc(ctx, func() { taken.Close(); linked.Close() })
	var wg sync.WaitGroup
	serve := func(l net.Listener, do func(*net.TCPConn) error) {
		for {
			conn, err := l.Accept()
			if err != nil {
				if ctx.Err() != nil {
					return
				}
				pause() // out of files, say
				continue
			}
			go func() {
				tcp := conn.(*net.TCPConn)
				defer tcp.Close()
				if err := do(tcp); err != nil {
					_ = tcp.SetLinger(0) // a reset: it did not come to its end
					c.Log.Debug("a connection broke off", "from", conn.RemoteAddr(), "to", conn.LocalAddr(), "err", err)
				}
			}()
		}
	}
	wg.Go(func() { serve(taken, e.take) })
	wg.Go(func() { serve(linked, e.serve) })
	wg.Wait()
	return ctx.Err()
}

// control makes a socket take connections to others' addresses, and with bound begin some
// from them.
func control(raw syscall.RawConn, network string, bound bool) (err error) {
	cerr := raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1),
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
		if network != "tcp4" {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1))
		}
		if bound {
			err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
		}
	})
	return errors.Join(err, cerr)
}

// wish is what one end asks of the other: a connection from a client to a server.
type wish struct{ Client, Server netip.AddrPort }

// take has the partner go on with a connection that was taken over.
func (e *end) take(client *net.TCPConn) error {
	p, err := e.partner()
	if err != nil {
		return err
	}
	var to net.Conn
	for _, a := range p.Partner.Addresses {
		if to, err = net.DialTimeout("tcp", netip.AddrPortFrom(a, e.Link).String(), patience); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	defer to.Close()
	w := wish{addrPort(client.RemoteAddr()), addrPort(client.LocalAddr())}
	if err := e.ask(to, p.Secret, w); err != nil {
		return err
	}
	return e.join(client, to)
}

func addrPort(a net.Addr) netip.AddrPort {
	p := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// serve opens the connection that the partner wishes.
func (e *end) serve(from *net.TCPConn) error {
	p, err := e.partner()
	if err != nil {
		return err
	}
	w, err := e.hear(from, p.Secret)
	if err != nil {
		return err
	}
	network := "tcp6"
	if w.Server.Addr().Is4() {
		network = "tcp4"
	}
	d := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(w.Client),
		Control: func(network, _ string, raw syscall.RawConn) error { return control(raw, network, false) }}
	server, err := d.Dial(network, w.Server.String())
	if err != nil {
		return err
	}
	defer server.Close()
	if err := e.join(server, from); err != nil {
		_ = server.(*net.TCPConn).SetLinger(0)
		return err
	}
	return nil
}

// join carries both directions between a plain connection and a link, until both are over.
func (e *end) join(plain, to net.Conn) error {
	l, err := newLink(to, e.store)
	if err != nil {
		return err
	}
	defer l.close()
	go func() {
		if err := l.sendQueue(); err != nil {
			to.Close()
		}
	}()
	sent := make(chan error, 1)
	go func() {
		err := l.send(plain)
		if err != nil {
			to.Close()
		}
		sent <- err
	}()
	err = l.receive(plain)
	if err != nil {
		plain.Close()
	}
	return errors.Join(err, <-sent)
}

// The two ends prove to each other that they know the pair's secret, and say which store
// each has. A greeting: nonce, epoch. The answer: nonce, epoch, the wish, and a MAC of all.
const nonceBytes = 16

func (e *end) hear(c net.Conn, secret string) (w wish, err error) {
	if err := c.SetDeadline(within(patience)); err != nil {
		return w, err
	}
	greeting := make([]byte, nonceBytes, nonceBytes+len(e.epoch))
	if _, err := rand.Read(greeting); err != nil {
		return w, err
	}
	greeting = append(greeting, e.epoch[:]...)
	if _, err := c.Write(greeting); err != nil {
		return w, err
	}
	var head [2]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return w, err
	}
	answer := make([]byte, int(head[0])<<8|int(head[1]))
	if _, err := io.ReadFull(c, answer); err != nil {
		return w, err
	}
	const before = nonceBytes + len(e.epoch)
	if len(answer) < before+sha256.Size {
		return w, errors.New("the answer is too short")
	}
	said, mac := answer[:len(answer)-sha256.Size], answer[len(answer)-sha256.Size:]
	if !hmac.Equal(mac, sign(secret, "answer", greeting, said)) {
		return w, errors.New("who connects does not know the pair's secret")
	}
	if _, err := c.Write(sign(secret, "welcome", greeting, said)); err != nil {
		return w, err
	}
	e.store.meet(id(said[nonceBytes:before]))
	if err := json.Unmarshal(said[before:], &w); err != nil {
		return w, err
	}
	return w, c.SetDeadline(time.Time{})
}

func (e *end) ask(c net.Conn, secret string, w wish) error {
	if err := c.SetDeadline(within(patience)); err != nil {
		return err
	}
	greeting := make([]byte, nonceBytes+len(e.epoch))
	if _, err := io.ReadFull(c, greeting); err != nil {
		return err
	}
	said := make([]byte, nonceBytes)
	if _, err := rand.Read(said); err != nil {
		return err
	}
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	said = append(append(said, e.epoch[:]...), text...)
	n := len(said) + sha256.Size
	message := append([]byte{byte(n >> 8), byte(n)}, said...)
	if _, err := c.Write(append(message, sign(secret, "answer", greeting, said)...)); err != nil {
		return err
	}
	welcome := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, welcome); err != nil {
		return err
	}
	if !hmac.Equal(welcome, sign(secret, "welcome", greeting, said)) {
		return errors.New("the partner does not know the pair's secret")
	}
	e.store.meet(id(greeting[nonceBytes:]))
	return c.SetDeadline(time.Time{})
}

func sign(secret, use string, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte("onpath wanopt " + use))
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}
