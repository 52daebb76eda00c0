package dns

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/near"
)

// directory has one service in two cloudlets; 10.2/16 is near the second. Another has a
// name as short as they come.
func directory() *near.Directory {
	s := &onpath.Service{Spec: onpath.ServiceSpec{Name: "cdn.acme.example"}}
	m := near.Map{}
	for i, n := range []string{"one", "two"} {
		s.Status.Cloudlets = append(s.Status.Cloudlets, onpath.ServicePlace{Cloudlet: n, Serves: true, Addresses: []netip.Addr{
			netip.AddrFrom4([4]byte{203, 0, 113, byte(i + 1)}), netip.MustParseAddr("2001:db8::" + string(rune('1'+i)))}})
		m[n] = near.Cloudlet{Prefixes: []onpath.Prefix{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i + 1), 0, 0}), 16)}}}
	}
	short := &onpath.Service{Spec: onpath.ServiceSpec{Name: "a.b"}, Status: s.Status}
	return near.NewDirectory([]*onpath.Service{s, short}, []*onpath.Tenant{{Spec: onpath.TenantSpec{Zones: []string{"acme.example"}}}}, m, nil)
}

// serve runs a server of a name on loopback; it gives its address.
func serve(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d := directory()
	s := New(Options{Directory: func() *near.Directory { return d }, Name: name, Clock: func() time.Time { return time.Unix(1e9, 0) }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, u, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func ask(t *testing.T, network, at string, q *dns.Msg) *dns.Msg {
	t.Helper()
	a, _, err := (&dns.Client{Net: network, Timeout: time.Minute}).Exchange(q, at)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func subnet(q *dns.Msg, prefix string, scope uint8) *dns.Msg {
	p := netip.MustParsePrefix(prefix)
	e := &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: uint8(p.Bits()), SourceScope: scope, Address: p.Addr().AsSlice()}
	q.SetEdns0(1232, false)
	q.IsEdns0().Option = append(q.IsEdns0().Option, e)
	return q
}

// TestAnswers: what is asked by either transport, and how it is answered.
func TestAnswers(t *testing.T) {
	at := serve(t, "ns.example")
	question := func(name string, typ uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, typ) }
	opcode := new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA)
	opcode.Opcode = dns.OpcodeUpdate
	version := new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA)
	version.SetEdns0(1232, false)
	version.IsEdns0().SetVersion(1)
	chaos := question("version.bind.", dns.TypeTXT)
	chaos.Question[0].Qclass = dns.ClassCHAOS
	for name, c := range map[string]struct {
		q     *dns.Msg
		rcode int
		want  string // of the answers
	}{
		"IPv4":           {new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA), dns.RcodeSuccess, "203.0.113.1"},
		"IPv6":           {question("cdn.acme.example.", dns.TypeAAAA), dns.RcodeSuccess, "2001:db8::1"},
		"mixed case":     {question("cDn.AcMe.ExAmPlE.", dns.TypeA), dns.RcodeSuccess, "203.0.113.1"},
		"subnet":         {subnet(new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA), "10.2.3.0/24", 0), dns.RcodeSuccess, "203.0.113.2"},
		"a cloudlet":     {question("two.cdn.acme.example.", dns.TypeA), dns.RcodeSuccess, "203.0.113.2"},
		"no cloudlet":    {question("ten.cdn.acme.example.", dns.TypeA), dns.RcodeNameError, ""},
		"other type":     {question("cdn.acme.example.", dns.TypeMX), dns.RcodeSuccess, ""},
		"zone":           {question("acme.example.", dns.TypeNS), dns.RcodeSuccess, "ns.example."},
		"SOA":            {question("acme.example.", dns.TypeSOA), dns.RcodeSuccess, "hostmaster.acme.example."},
		"nobody":         {question("no.acme.example.", dns.TypeA), dns.RcodeNameError, ""},
		"not ours":       {question("example.net.", dns.TypeA), dns.RcodeRefused, ""},
		"root":           {question(".", dns.TypeNS), dns.RcodeRefused, ""},
		"chaos":          {chaos, dns.RcodeRefused, ""},
		"transfer":       {question("acme.example.", dns.TypeAXFR), dns.RcodeRefused, ""},
		"update":         {opcode, dns.RcodeNotImplemented, ""},
		"EDNS version":   {version, dns.RcodeBadVers, ""},
		"subnet's scope": {subnet(new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA), "10.2.3.0/24", 24), dns.RcodeFormatError, ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(name+"/"+network, func(t *testing.T) {
				a := ask(t, network, at, c.q.Copy())
				var got []string
				for _, rr := range a.Answer {
					got = append(got, rr.String())
					if rr.Header().Ttl > TTL {
						t.Errorf("it lives %d s", rr.Header().Ttl)
					}
				}
				if a.Rcode != c.rcode || c.want == "" && len(got) > 0 || !strings.Contains(strings.Join(got, " "), c.want) {
					t.Fatalf("%s", a)
				}
				if a.RecursionAvailable || a.Truncated {
					t.Errorf("%s", a)
				}
				if len(got) == 0 && (a.Rcode == dns.RcodeSuccess || a.Rcode == dns.RcodeNameError) && len(a.Ns) != 1 {
					t.Errorf("resolvers are not told for how long there is nothing: %s", a)
				}
			})
		}
	}
	a := ask(t, "udp", at, subnet(new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA), "10.2.3.0/24", 0))
	if e := a.IsEdns0().Option[0].(*dns.EDNS0_SUBNET); e.SourceNetmask != 24 || e.SourceScope != 24 {
		t.Errorf("the answer is for %s", e)
	}
}

// TestFlood: of questions that one network sends without end a bounded number is answered
// by UDP, and no answer is much longer than its question.
func TestFlood(t *testing.T) {
	conn, err := net.Dial("udp", serve(t, "ns1.operator.example.net"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	buf := make([]byte, 1<<12)
	exchange := func(q *dns.Msg) (sent, got int, a *dns.Msg) {
		t.Helper()
		b, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := conn.Read(buf)
		if a = new(dns.Msg); err == nil {
			err = a.Unpack(buf[:n])
		}
		if err != nil {
			t.Fatalf("%s: %v", q.Question[0].String(), err)
		}
		return len(b), n, a
	}
	asked := 0
	for _, typ := range []uint16{dns.TypeA, dns.TypeANY, dns.TypeTXT, dns.TypeNS, dns.TypeSOA, dns.TypeDNSKEY, dns.TypeRRSIG} {
		for _, name := range []string{"cdn.acme.example.", "no.acme.example.", "acme.example.", "example.net.", "a.b.", "x.a.b."} {
			plain := new(dns.Msg).SetQuestion(name, typ)
			for _, q := range []*dns.Msg{plain, plain.Copy().SetEdns0(1232, false), subnet(plain.Copy(), "10.2.3.0/24", 0)} {
				asked++
				sent, got, a := exchange(q)
				if got > mostTimes*sent {
					t.Errorf("%s of %d bytes is answered with %d:\n%s", q.Question[0].String(), sent, got, a)
				}
				if a.Truncated != (len(a.Answer)+len(a.Ns) == 0 && a.Rcode != dns.RcodeRefused) || (a.IsEdns0() == nil) != (q.IsEdns0() == nil) {
					t.Errorf("%s: %s", q.Question[0].String(), a)
				}
				if a.Truncated && q != plain && strings.HasSuffix(name, "acme.example.") {
					t.Errorf("a resolver has to come by TCP for %s", q.Question[0].String())
				}
			}
		}
	}
	question := func() *dns.Msg { return new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA) }
	for range perNetwork - asked {
		if _, _, a := exchange(question()); a.Truncated {
			t.Fatalf("a question within the rate is not answered: %s", a)
		}
	}
	if _, _, a := exchange(question()); !a.Truncated {
		t.Errorf("a question above the rate is answered by UDP: %s", a)
	}
	if b, err := question().Pack(); err != nil {
		t.Fatal(err)
	} else if _, err := conn.Write(b); err != nil { // every second one is not answered at all
		t.Fatal(err)
	}
	if _, _, a := exchange(question()); !a.Truncated { // to one of the two: they are taken side by side
		t.Errorf("%s", a)
	}
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, err := conn.Read(buf); err == nil {
		t.Error("each question above the rate is answered")
	}
}

// TestDig: a tool that others wrote reads the answers, and is led by the subnet it names.
func TestDig(t *testing.T) {
	if _, err := exec.LookPath("dig"); err != nil {
		t.Skip("dig is not installed")
	}
	host, port, _ := net.SplitHostPort(serve(t, "ns.example"))
	for subnet, want := range map[string]string{"10.1.5.0/24": "203.0.113.1", "10.2.5.0/24": "203.0.113.2"} {
		out, err := exec.CommandContext(t.Context(), "dig", "@"+host, "-p", port, "+subnet="+subnet, "cdn.acme.example").CombinedOutput()
		text := string(out)
		if err != nil || !strings.Contains(text, want) || !strings.Contains(text, "CLIENT-SUBNET: "+subnet+"/24") || !strings.Contains(text, " aa ") {
			t.Errorf("%v\n%s", err, text)
		}
	}
}

// TestExtensions: the DO bit comes back (RFC 3225 §3), and a question has at most one OPT
// record, the root's (RFC 6891 §6.1.1).
func TestExtensions(t *testing.T) {
	at := serve(t, "ns.example.")
	for _, network := range []string{"udp", "tcp"} {
		for _, do := range []bool{false, true} {
			q := new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA).SetEdns0(1232, do)
			if o := ask(t, network, at, q).IsEdns0(); o == nil || o.Do() != do {
				t.Errorf("%s: DO %t is answered by %v", network, do, o)
			}
		}
		twice := new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA).SetEdns0(1232, false).SetEdns0(1232, false)
		named := new(dns.Msg).SetQuestion("cdn.acme.example.", dns.TypeA).SetEdns0(1232, false)
		named.Extra[0].Header().Name = "acme.example."
		for what, q := range map[string]*dns.Msg{"two OPT records": twice, "an OPT record with a name": named} {
			if a := ask(t, network, at, q); a.Rcode != dns.RcodeFormatError || len(a.Answer) > 0 {
				t.Errorf("%s: %s: %s", network, what, dns.RcodeToString[a.Rcode])
			}
		}
	}
}
