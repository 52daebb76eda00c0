package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/onpath/onpath"
)

// served are the sockets of an engine's ports, which another process opened.
type served struct {
	own       *net.UDPConn // sends from the instance's address
	udp       map[uint16]*net.UDPConn
	listeners map[uint16]net.Listener
	servers   []*http.Server
}

// Limits of HTTP: what one client may have open, and how long anything takes.
const (
	requestTime = 10 * time.Second
	maxRequests = 64 // at a time
)

// adopt makes sockets of files: first the one that only sends, then one for each port.
func adopt(ports []onpath.ServedPort, files []*os.File) (*served, error) {
	s := &served{udp: map[uint16]*net.UDPConn{}, listeners: map[uint16]net.Listener{}}
	if len(files) != len(ports)+1 {
		return nil, fmt.Errorf("serve %d ports: %d sockets were handed over", len(ports), len(files))
	}
	for i, f := range files {
		if i > 0 && ports[i-1].Protocol == "tcp" {
			l, err := net.FileListener(f)
			if err != nil {
				return s, fmt.Errorf("serve %s: %w", ports[i-1], err)
			}
			s.listeners[ports[i-1].Port] = l
			continue
		}
		c, err := net.FilePacketConn(f)
		if err != nil {
			return s, fmt.Errorf("take over a socket for datagrams: %w", err)
		}
		udp, ok := c.(*net.UDPConn)
		if !ok {
			return s, fmt.Errorf("take over a socket for datagrams: it is a %T", c)
		}
		if i == 0 {
			s.own = udp
			continue
		}
		s.udp[ports[i-1].Port] = udp
	}
	return s, nil
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
	for port, c := range s.udp {
		go e.readDatagrams(port, c)
	}
	for port, l := range s.listeners {
		srv := &http.Server{Handler: e.requests(port), ReadTimeout: requestTime, WriteTimeout: requestTime, MaxHeaderBytes: 8 << 10}
		s.servers = append(s.servers, srv)
		go func() { _ = srv.Serve(l) }()
	}
}

func (s *served) close() {
	if s == nil {
		return
	}
	for _, srv := range s.servers {
		_ = srv.Close()
	}
	for _, c := range s.udp {
		_ = c.Close()
	}
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
			e.datagram(b[:datagramHead+n])
			e.asked = nil
		})
		if err != nil {
			return
		}
	}
}

// datagram is for all modules that take datagrams.
func (e *Engine) datagram(b []byte) {
	for _, m := range e.list {
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
func (e *Engine) requests(uint16) http.Handler {
	places := make(chan struct{}, maxRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			http.Error(w, "too many requests at a time", http.StatusServiceUnavailable)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBuffer))
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		var a answer
		if err := e.do(r.Context(), func() { a = e.request(r.Method, r.URL.RequestURI(), r.Host, body) }); err != nil {
			return
		}
		if a.kind != "" {
			w.Header().Set("Content-Type", a.kind)
		}
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body)
	})
}

func (e *Engine) request(method, path, host string, body []byte) answer {
	for _, m := range e.list {
		if m.request == nil {
			continue
		}
		if m.out() {
			return answer{status: http.StatusServiceUnavailable, body: []byte("the module is out of service\n")}
		}
		b := binary.LittleEndian.AppendUint32(nil, uint32(len(method)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(path)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(host)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
		b = append(append(append(append(b, method...), path...), host...), body...)
		if len(b) > int(m.d.bufferSize) {
			return answer{status: http.StatusRequestEntityTooLarge, body: []byte("the request is too long\n")}
		}
		m.inst.Memory().Write(m.d.buffer, b)
		a := answer{}
		m.host.answer = &a
		err := m.timed(0, m.request)
		m.host.answer = nil
		if err != nil {
			e.takeOut(m, err)
			return answer{status: http.StatusBadGateway, body: []byte("the module failed\n")}
		}
		if a.status == 0 {
			a = answer{status: http.StatusNotFound, body: []byte("the module does not answer\n")}
		}
		return a
	}
	return answer{status: http.StatusNotFound, body: []byte("no module serves HTTP\n")}
}
