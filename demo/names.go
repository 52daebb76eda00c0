package demo

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// NamesSpec says what a DNS server is asked, and how often.
type NamesSpec struct {
	Server string        `json:"server"` // ADDRESS:PORT
	Name   string        `json:"name"`
	Rate   int           `json:"rate"` // a second
	For    time.Duration `json:"for"`  // ns; 0: once
	// Subnet of the client that a resolver asks for (RFC 7871); "": none is named.
	Subnet string `json:"subnet,omitempty"`
}

// NamesResult is what was answered: each answer from when on.
type NamesResult struct {
	Answers []NameAnswer `json:"answers"`
	Asked   int          `json:"asked"`
	// Failed questions had no answer within a second, or an error.
	Failed int `json:"failed"`
	// TTL is the longest of the answers', in seconds.
	TTL uint32 `json:"ttl"`
}

// NameAnswer is an answer that was the same for a while.
type NameAnswer struct {
	Address string    `json:"address"` // "": none
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Count   int       `json:"count"`
}

// RunNames asks for the IPv4 address of a name again and again.
func RunNames(ctx context.Context, s NamesSpec) (r NamesResult, err error) {
	c := &dns.Client{Timeout: time.Second}
	conn, err := c.DialContext(ctx, s.Server)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	subnet := &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1}
	if s.Subnet != "" {
		p, err := netip.ParsePrefix(s.Subnet)
		if err != nil {
			return r, err
		}
		subnet.SourceNetmask, subnet.Address = uint8(p.Bits()), p.Addr().AsSlice()
	}
	start := time.Now()
	for ctx.Err() == nil {
		q := new(dns.Msg).SetQuestion(dns.Fqdn(s.Name), dns.TypeA)
		if s.Subnet != "" {
			q.SetEdns0(1232, false)
			q.IsEdns0().Option = append(q.IsEdns0().Option, subnet)
		}
		a, _, err := c.ExchangeWithConnContext(ctx, q, conn)
		r.Asked++
		if err != nil || a.Rcode != dns.RcodeSuccess {
			r.Failed++
		} else {
			r.note(a)
		}
		if time.Since(start) >= s.For {
			return r, nil
		}
		if s.Rate > 0 {
			time.Sleep(time.Until(start.Add(time.Duration(r.Asked) * time.Second / time.Duration(s.Rate))))
		}
	}
	return r, fmt.Errorf("ask for %s: %w", s.Name, ctx.Err())
}

func (r *NamesResult) note(a *dns.Msg) {
	address := ""
	for _, rr := range a.Answer {
		if x, ok := rr.(*dns.A); ok {
			address, r.TTL = x.A.String(), max(r.TTL, x.Hdr.Ttl)
		}
	}
	now := time.Now()
	if n := len(r.Answers); n > 0 && r.Answers[n-1].Address == address {
		r.Answers[n-1].Last = now
		r.Answers[n-1].Count++
		return
	}
	r.Answers = append(r.Answers, NameAnswer{address, now, now, 1})
}
