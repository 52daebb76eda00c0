// Package dns answers questions for the names of services: with the addresses of the
// cloudlet that is nearest to who asks. It is authoritative for the tenants' zones, and
// nothing else: no recursion, no transfer, no signatures.
package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/onpath/onpath/internal/fairshare"
	"github.com/onpath/onpath/plan/near"
)

// TTL of all answers, in seconds: within it answers move when a cloudlet dies.
const TTL = 5

// Bounds of what strangers have the server do.
const (
	mostConnections = 256
	ofNetwork       = mostConnections / 16
	mostQuestions   = 64 // of one connection
	// Answers by UDP a second to one network. Of the questions above, every second one is
	// asked to come by TCP, where the source cannot be forged.
	perNetwork = 1000
	// mostTimes as long as its question is an answer by UDP at most; a longer one is had by
	// TCP.
	mostTimes = 3
	patience  = 5 * time.Second
	largest   = 1232 // bytes of an answer by UDP, whatever the client takes
)

// Options of a Server.
type Options struct {
	// Directory is what names lead to now; nil: it is not known yet.
	Directory func() *near.Directory
	// Seen is told of clients in no cloudlet's prefixes, by the address that asks.
	Seen func(netip.Addr)
	// Name is this server's own, in NS and SOA records; "": the zone's.
	Name  string
	Clock func() time.Time
}

// Server answers.
type Server struct {
	o     Options
	rates *fairshare.Rates
}

// New makes a Server.
func New(o Options) *Server {
	return &Server{o: o, rates: fairshare.NewRates(o.Clock, perNetwork, perNetwork)}
}

// Serve answers at both sockets until ctx ends.
func (s *Server) Serve(ctx context.Context, udp net.PacketConn, tcp net.Listener) error {
	servers := []*dns.Server{
		{PacketConn: udp, Handler: dns.HandlerFunc(s.byUDP), UDPSize: largest, ReadTimeout: patience},
		{Listener: fairshare.Listen(tcp, mostConnections, ofNetwork), Handler: dns.HandlerFunc(s.byTCP), MaxTCPQueries: mostQuestions,
			ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: func() time.Duration { return patience }},
	}
	ended := make(chan error, len(servers))
	for _, d := range servers {
		go func() { ended <- d.ActivateAndServe() }()
	}
	var err error
	left := len(servers)
	select {
	case <-ctx.Done():
	case err = <-ended:
		left--
	}
	_ = udp.Close()
	_ = tcp.Close()
	for range left {
		<-ended
	}
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) byUDP(w dns.ResponseWriter, q *dns.Msg) {
	from := fairshare.Address(w.RemoteAddr().String())
	switch ok, over := s.rates.Allow(from); {
	case ok:
	case over%2 == 0:
		return
	default: // who is there asks again by TCP; a forged source does not
		_ = w.WriteMsg(byTCPInstead(q))
		return
	}
	m := s.answer(q, from)
	size := dns.MinMsgSize
	if o := q.IsEdns0(); o != nil {
		size = min(max(int(o.UDPSize()), dns.MinMsgSize), largest)
	}
	m.Truncate(size)
	if m.Compress = true; m.Len() > mostTimes*q.Len() {
		m = byTCPInstead(q)
	}
	_ = w.WriteMsg(m)
}

// byTCPInstead is the answer to ask again by TCP.
func byTCPInstead(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative, m.Truncated = true, true
	if o := q.IsEdns0(); o != nil {
		m.SetEdns0(largest, o.Do())
	}
	return m
}

func (s *Server) byTCP(w dns.ResponseWriter, q *dns.Msg) {
	_ = w.WriteMsg(s.answer(q, fairshare.Address(w.RemoteAddr().String())))
}

// answer is what a message is answered with.
func (s *Server) answer(q *dns.Msg, from netip.Addr) *dns.Msg {
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = false
	client, ok := s.edns(q, m, from)
	switch {
	case !ok:
		return m
	case q.Opcode != dns.OpcodeQuery:
		return m.SetRcode(q, dns.RcodeNotImplemented)
	case len(q.Question) != 1:
		return m.SetRcodeFormatError(q)
	case q.Question[0].Qclass != dns.ClassINET && q.Question[0].Qclass != dns.ClassANY:
		m.Rcode = dns.RcodeRefused
		return m
	case q.Question[0].Qtype == dns.TypeAXFR || q.Question[0].Qtype == dns.TypeIXFR:
		m.Rcode = dns.RcodeRefused
		return m
	}
	d := s.o.Directory()
	if d == nil {
		m.Rcode = dns.RcodeServerFailure
		return m
	}
	s.look(m, d, client, from)
	if s.o.Seen != nil && len(m.Answer) > 0 {
		s.o.Seen(from)
	}
	return m
}

// onlyOPT is whether q has one OPT record, of the root (RFC 6891 §6.1.1, §6.1.2).
func onlyOPT(q *dns.Msg) bool {
	n := 0
	for _, rr := range q.Extra {
		if rr.Header().Rrtype == dns.TypeOPT {
			if n++; rr.Header().Name != "." {
				return false
			}
		}
	}
	return n == 1
}

// edns takes up the extensions of a question (RFC 6891), its client subnet above all
// (RFC 7871); false: m refuses it.
func (s *Server) edns(q, m *dns.Msg, from netip.Addr) (client netip.Prefix, ok bool) {
	client = netip.PrefixFrom(from, from.BitLen())
	o := q.IsEdns0()
	if o == nil {
		return client, true
	}
	if !onlyOPT(q) {
		m.Rcode = dns.RcodeFormatError
		return client, false
	}
	reply := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
	reply.SetUDPSize(largest)
	reply.SetDo(o.Do()) // RFC 3225 §3
	m.Extra = append(m.Extra, reply)
	if o.Version() != 0 {
		m.Rcode = dns.RcodeBadVers
		return client, false
	}
	for _, e := range o.Option {
		x, is := e.(*dns.EDNS0_SUBNET)
		if !is {
			continue
		}
		a, valid := netip.AddrFromSlice(x.Address)
		if x.Family == 1 {
			a = a.Unmap()
		}
		p, err := a.Prefix(int(x.SourceNetmask))
		if !valid || err != nil || x.SourceScope != 0 || x.Family == 1 && !a.Is4() || x.Family == 2 && !a.Is6() || p.Addr() != a {
			m.Rcode = dns.RcodeFormatError
			return client, false
		}
		scope := x.SourceNetmask
		if x.SourceNetmask > 0 {
			client = p
		}
		reply.Option = append(reply.Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: x.Family, SourceNetmask: x.SourceNetmask,
			SourceScope: scope, Address: x.Address})
		break
	}
	return client, true
}

// look writes what the directory says into an answer.
func (s *Server) look(m *dns.Msg, d *near.Directory, client netip.Prefix, from netip.Addr) {
	q := m.Question[0]
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	a := d.Look(name, client, from)
	if a.Zone == "" {
		m.Rcode = dns.RcodeRefused
		return
	}
	m.Authoritative = true
	head := func(t uint16) dns.RR_Header {
		return dns.RR_Header{Name: q.Name, Rrtype: t, Class: dns.ClassINET, Ttl: TTL}
	}
	for _, x := range a.Addresses {
		switch {
		case x.Is4() && (q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY):
			m.Answer = append(m.Answer, &dns.A{Hdr: head(dns.TypeA), A: x.AsSlice()})
		case x.Is6() && (q.Qtype == dns.TypeAAAA || q.Qtype == dns.TypeANY):
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: head(dns.TypeAAAA), AAAA: x.AsSlice()})
		}
	}
	if name == a.Zone {
		switch {
		case q.Qtype == dns.TypeNS && s.o.Name != "":
			m.Answer = append(m.Answer, &dns.NS{Hdr: head(dns.TypeNS), Ns: dns.Fqdn(s.o.Name)})
		case q.Qtype == dns.TypeSOA:
			m.Answer = append(m.Answer, s.soa(a.Zone))
		}
	}
	if !a.Exists {
		m.Rcode = dns.RcodeNameError
	}
	if len(m.Answer) == 0 {
		m.Ns = append(m.Ns, s.soa(a.Zone))
	}
}

// soa tells resolvers for how long there is nothing (RFC 2308).
func (s *Server) soa(zone string) *dns.SOA {
	name := s.o.Name
	if name == "" {
		name = zone
	}
	return &dns.SOA{Hdr: dns.RR_Header{Name: dns.Fqdn(zone), Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: TTL},
		Ns: dns.Fqdn(name), Mbox: dns.Fqdn("hostmaster." + zone), Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: TTL}
}
