package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// served are the sockets of an engine's ports, which another process opened.
type served struct {
	own  *net.UDPConn // sends from the instance's address
	udp  map[uint16]*net.UDPConn
	tcp  map[uint16]net.Listener
	http map[uint16]*http.Server
}

// Limits of HTTP: what one client may have open, and how long anything takes.
const (
	requestTime = 10 * time.Second
	maxRequests = 64 // at a time
)

// adopt makes sockets of files: first the one that only sends, then one for each port.
func adopt(ports []onpath.ServedPort, files []*os.File) (*served, error) {
	s := &served{udp: map[uint16]*net.UDPConn{}, tcp: map[uint16]net.Listener{}, http: map[uint16]*http.Server{}}
	if len(files) != len(ports)+1 {
		return nil, fmt.Errorf("serve %d ports: %d sockets were handed over", len(ports), len(files))
	}
	var err error
	if s.own, err = datagramsOf(files[0]); err != nil {
		return s, err
	}
	return s, s.add(ports, files[1:])
}

// add makes sockets of files, one for each port; on error of none.
func (s *served) add(ports []onpath.ServedPort, files []*os.File) (err error) {
	fresh := &served{udp: map[uint16]*net.UDPConn{}, tcp: map[uint16]net.Listener{}}
	for i, p := range ports {
		var l net.Listener
		var c *net.UDPConn
		if p.Protocol == "tcp" {
			l, err = net.FileListener(files[i])
		} else {
			c, err = datagramsOf(files[i])
		}
		switch {
		case err != nil:
			fresh.close()
			return fmt.Errorf("serve %s: %w", p, err)
		case l != nil:
			fresh.tcp[p.Port] = l
		default:
			fresh.udp[p.Port] = c
		}
	}
	maps.Copy(s.tcp, fresh.tcp)
	maps.Copy(s.udp, fresh.udp)
	return nil
}

func datagramsOf(f *os.File) (*net.UDPConn, error) {
	c, err := net.FilePacketConn(f)
	if err != nil {
		return nil, fmt.Errorf("take over a socket for datagrams: %w", err)
	}
	udp, ok := c.(*net.UDPConn)
	if !ok {
		return nil, fmt.Errorf("take over a socket for datagrams: it is a %T", c)
	}
	return udp, nil
}

// Serve has the engine serve these ports and no others; files are the sockets of new ports,
// in their order.
func (e *Engine) Serve(ctx context.Context, ports []onpath.ServedPort, files []*os.File) (err error) {
	posted := e.do(ctx, func() { err = e.serveAt(ports, files) })
	return cmp.Or(posted, err)
}

func (e *Engine) serveAt(ports []onpath.ServedPort, files []*os.File) error {
	s := e.served
	if s == nil {
		return onpath.Errorf(onpath.CodeInvalid, "serve ports: the engine is not attached")
	}
	fresh := slices.DeleteFunc(slices.Clone(ports), s.has)
	if len(fresh) != len(files) {
		return onpath.Errorf(onpath.CodeInvalid, "serve ports: %d are not served yet, and %d sockets were handed over", len(fresh),
			len(files))
	}
	s.closePorts(func(p onpath.ServedPort) bool { return !slices.Contains(ports, p) })
	if err := s.add(fresh, files); err != nil {
		return err
	}
	for _, p := range fresh {
		s.begin(e, p)
	}
	return nil
}

func (s *served) has(p onpath.ServedPort) bool {
	if p.Protocol == "tcp" {
		return s.tcp[p.Port] != nil
	}
	return s.udp[p.Port] != nil
}

// ports are all that it serves.
func (s *served) ports() (out []onpath.ServedPort) {
	if s == nil {
		return nil
	}
	for port := range s.tcp {
		out = append(out, onpath.ServedPort{Protocol: "tcp", Port: port})
	}
	for port := range s.udp {
		out = append(out, onpath.ServedPort{Protocol: "udp", Port: port})
	}
	return out
}

// closePorts closes ports that are over, and connections to them.
func (s *served) closePorts(over func(onpath.ServedPort) bool) {
	for port, l := range s.tcp {
		if over(onpath.ServedPort{Protocol: "tcp", Port: port}) {
			_ = l.Close()
			if srv := s.http[port]; srv != nil {
				_ = srv.Close()
			}
			delete(s.tcp, port)
			delete(s.http, port)
		}
	}
	for port, c := range s.udp {
		if over(onpath.ServedPort{Protocol: "udp", Port: port}) {
			_ = c.Close()
			delete(s.udp, port)
		}
	}
}

// at are the modules that serve a port: all that name it, else all that name none.
func (e *Engine) at(p onpath.ServedPort) []*module {
	var named, others []*module
	for _, m := range e.list {
		if slices.Contains(m.spec.Ports, p) {
			named = append(named, m)
		} else if len(m.spec.Ports) == 0 {
			others = append(others, m)
		}
	}
	if len(named) > 0 {
		return named
	}
	return others
}

func (s *served) datagrams(port uint16) *net.UDPConn {
	switch {
	case s == nil:
		return nil
	case port == 0:
		return s.own
	}
	return s.udp[port]
}

// serve has what comes at the ports become events.
func (s *served) serve(e *Engine) {
	if s == nil {
		return
	}
	for port := range s.udp {
		s.begin(e, onpath.ServedPort{Protocol: "udp", Port: port})
	}
	for port := range s.tcp {
		s.begin(e, onpath.ServedPort{Protocol: "tcp", Port: port})
	}
}

func (s *served) begin(e *Engine, p onpath.ServedPort) {
	if p.Protocol == "udp" {
		go e.readDatagrams(p.Port, s.udp[p.Port])
		return
	}
	srv := &http.Server{Handler: e.requests(p.Port), ReadTimeout: requestTime, WriteTimeout: requestTime, MaxHeaderBytes: 8 << 10}
	s.http[p.Port] = srv
	l := s.tcp[p.Port]
	go func() { _ = srv.Serve(l) }()
}

func (s *served) close() {
	if s == nil {
		return
	}
	s.closePorts(func(onpath.ServedPort) bool { return true })
	if s.own != nil {
		_ = s.own.Close()
	}
}

// datagramHead is struct onpath_datagram without its data, in bytes.
const datagramHead = 24

// asked is the datagram at hand: what answers it comes from the address that it went to.
type asked struct {
	from netip.AddrPort
	port uint16
	// to is the control message that tells that address, and says it likewise.
	to []byte
}

func (e *Engine) readDatagrams(port uint16, c *net.UDPConn) {
	b, to := make([]byte, datagramHead+maxData), make([]byte, 128)
	for {
		n, nto, _, from, err := c.ReadMsgUDPAddrPort(b[datagramHead:], to)
		if err != nil {
			return
		}
		addr := from.Addr().As16()
		copy(b, addr[:])
		binary.BigEndian.PutUint16(b[16:], from.Port())
		binary.BigEndian.PutUint16(b[18:], port)
		binary.LittleEndian.PutUint32(b[20:], uint32(n))
		err = e.do(context.Background(), func() {
			e.asked = &asked{from: from, port: port, to: to[:nto]}
			e.datagram(port, b[:datagramHead+n])
			e.asked = nil
		})
		if err != nil {
			return
		}
	}
}

// datagram is for all modules of the port that take datagrams.
func (e *Engine) datagram(port uint16, b []byte) {
	for _, m := range e.at(onpath.ServedPort{Protocol: "udp", Port: port}) {
		if m.gram == nil || m.out() || len(b) > int(m.d.bufferSize) {
			continue
		}
		m.inst.Memory().Write(m.d.buffer, b)
		if err := m.timed(0, m.gram); err != nil {
			e.takeOut(m, err)
		}
	}
}

// requests answers by the first module that serves HTTP.
func (e *Engine) requests(port uint16) http.Handler {
	places := make(chan struct{}, maxRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
		default:
			http.Error(w, "too many requests at a time", http.StatusServiceUnavailable)
			return
		}
		a, err := e.ask(port, r)
		<-places
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		case a.kept != nil:
			a.kept.serve(w)
			return
		case a.kind != "":
			w.Header().Set("Content-Type", a.kind)
		}
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body)
	})
}

// ask has a module meet a request.
func (e *Engine) ask(port uint16, r *http.Request) (*answer, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBuffer+1))
	if err != nil {
		return nil, err
	}
	a := &answer{asked: r, upload: io.MultiReader(bytes.NewReader(body), r.Body)}
	err = e.do(e.ended, func() {
		if r.Context().Err() == nil {
			e.request(port, a, body)
		}
	})
	if err == nil && a.status == 0 && a.kept == nil {
		err = context.Cause(r.Context())
	}
	return a, err
}

func (a *answer) say(status int, text string) { a.status, a.body = status, []byte(text) }

func (e *Engine) request(port uint16, a *answer, body []byte) {
	for _, m := range e.at(onpath.ServedPort{Protocol: "tcp", Port: port}) {
		if m.request == nil {
			continue
		}
		if m.out() {
			a.say(http.StatusServiceUnavailable, "the module is out of service\n")
			return
		}
		b := requestOf(a.asked, body, int(m.d.bufferSize), m.streams)
		if b == nil {
			a.say(http.StatusRequestEntityTooLarge, "the request is too long\n")
			return
		}
		m.inst.Memory().Write(m.d.buffer, b)
		m.host.answer = a
		err := m.timed(0, m.request)
		m.host.answer = nil
		switch {
		case err != nil:
			e.takeOut(m, err)
			a.say(http.StatusBadGateway, "the module failed\n")
		case a.status == 0 && a.kept == nil:
			a.say(http.StatusNotFound, "the module does not answer\n")
		}
		return
	}
	a.say(http.StatusNotFound, "no module serves HTTP\n")
}

// longBody is the length of one that a module reads as a stream (ONPATH_LONG).
const longBody = 1<<32 - 1

// requestOf is struct onpath_request; nil: there is no room for it.
func requestOf(r *http.Request, body []byte, room int, streams bool) []byte {
	path := r.URL.RequestURI()
	length := uint32(len(body))
	if size := 16 + len(r.Method) + len(path) + len(r.Host); streams && (len(body) > maxBuffer || size+len(body) > room) {
		length, body = longBody, nil
	}
	var b []byte
	for _, n := range []uint32{uint32(len(r.Method)), uint32(len(path)), uint32(len(r.Host)), length} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	b = append(append(append(append(b, r.Method...), path...), r.Host...), body...)
	if len(b) > room || len(body) > maxBuffer {
		return nil
	}
	return b
}
