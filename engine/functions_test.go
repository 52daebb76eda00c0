package engine_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/internal/funcbuild"
	"github.com/onpath/onpath/internal/netnsrun"
)

// TestKeepAlive: keep-alives are answered in the name of a server that lives, with checksums
// that the kernel takes; a call goes on.
func TestKeepAlive(t *testing.T) {
	code, err := os.ReadFile("../functions/sip-keepalive/sip-keepalive.wasm")
	if err != nil {
		t.Fatal(err)
	}
	s := newTestbed(t)
	if err := s.set(onpath.WasmModule{Name: "keep", Code: code}); err != nil {
		t.Fatal(err)
	}
	var c *net.UDPConn
	if err := netnsrun.Do(s.near, func() (err error) {
		c, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(10, 9, 0, 3), Port: 5060})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	request := "OPTIONS sip:a@b SIP/2.0\r\nVia: SIP/2.0/UDP 10.9.0.1;branch=z9\r\nMax-Forwards: 70\r\nFrom: <sip:a@b>;tag=1\r\n" +
		"To: <sip:b@b>\r\nCall-ID: x\r\nCSeq: 5 OPTIONS\r\nContent-Length: 0\r\n\r\n"
	const answer = "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 10.9.0.1;branch=z9\r\nFrom: <sip:a@b>;tag=1\r\n" +
		"To: <sip:b@b>;tag=onpath\r\nCall-ID: x\r\nCSeq: 5 OPTIONS\r\nContent-Length: 0\r\n\r\n"
	await := func(n uint64) control.ModuleStatus {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); s.status().Modules[0].Packets < n && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond)
		}
		return s.status().Modules[0]
	}
	if _, err := c.Write([]byte("\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if m := await(1); m.Passed != 1 || m.Sent != 0 {
		t.Fatalf("a server of which nothing is known: %+v", m)
	}
	s.sendsReverse(netip.MustParseAddrPort("10.9.0.3:5060"), c.LocalAddr().(*net.UDPAddr).AddrPort(), "SIP/2.0 200 OK\r\n\r\n")
	await(2)
	if _, err := c.Read(make([]byte, 100)); err != nil { // the engine lets it pass, and the host is behind
		t.Fatal(err)
	}
	keepAlive := strings.Replace(strings.ReplaceAll(request, "OPTIONS", "NOTIFY"), "Content-Length", "Event: keep-alive\r\nContent-Length", 1)
	for sent, want := range map[string]string{
		request: answer, "\r\n\r\n": "\r\n", keepAlive: strings.ReplaceAll(answer, "OPTIONS", "NOTIFY"),
	} {
		if _, err := c.Write([]byte(sent)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2048)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := c.Read(b)
		if err != nil || string(b[:n]) != want {
			t.Errorf("%q was answered %q (%v)", sent, b[:n], err)
		}
	}
	if _, err := c.Write([]byte(strings.ReplaceAll(request, "OPTIONS", "INVITE"))); err != nil {
		t.Fatal(err)
	}
	if m := await(6); m.Counters["answered"] != 3 || m.Counters["passed"] != 2 || m.Sent != 3 || m.Passed != 3 {
		t.Errorf("%+v", m)
	}
}

// sendsReverse sends the engine a datagram of the chain's reverse direction.
func (s *testbed) sendsReverse(from, to netip.AddrPort, payload string) {
	s.t.Helper()
	g := onpath.GroupOf(1, 0, true)
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
	udp := &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(to.Port())}
	b := gopacket.NewSerializeBuffer()
	err := errors.Join(udp.SetNetworkLayerForChecksum(ip),
		gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: net.HardwareAddr{0x02, 0x6f, onpath.ChainMACByte, byte(g >> 16), byte(g >> 8), byte(g)}, DstMAC: engineMAC, EthernetType: layers.EthernetTypeIPv4},
			ip, udp, gopacket.Payload(payload)))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := netnsrun.Do(s.near, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		l, err := net.InterfaceByName("v0")
		if err != nil {
			return err
		}
		return unix.Sendto(fd, b.Bytes(), 0, &unix.SockaddrLinklayer{Ifindex: l.Index})
	}); err != nil {
		s.t.Fatal(err)
	}
}

// hostile are modules that break a bound, and what is said of each.
var hostile = []struct{ name, body, why string }{
	{"loop", "volatile unsigned n = 0; for (;;) n++;", "steps for one event"},
	{"recursion", "return deep(p) + deep(p);", "it trapped"},
	{"host-calls", "for (;;) bpf_get_prandom_u32();", "asked the host more than"},
	{"bad-offset", "onpath_send((void *)0xfffffff0u, 100); return 0;", "not in its memory"},
	{"bad-log", "onpath_log((void *)0x7fffffffu, 10); return 0;", "not in its memory"},
	{"trap", "__builtin_trap();", "it trapped"},
	{"fill", "for (;;) __builtin_memset((void *)65536, p->ttl, 65536);", "steps for one event"},
	{"grow", "for (;;) __builtin_wasm_memory_grow(0, 1);", "steps for one event"},
}

// TestHostile: what a module does beside another ends itself; the other sees all packets.
func TestHostile(t *testing.T) {
	dns := compiled(t, "dns")
	for _, h := range hostile {
		t.Run(h.name, func(t *testing.T) {
			source := t.TempDir() + "/hostile.c"
			text := "#include \"onpath.h\"\nONPATH_LICENSE(\"GPL\");\n" +
				"__attribute__((noinline)) static int deep(struct onpath_packet *p) { volatile int x = p->ttl; return x ? deep(p) + x : 0; }\n" +
				"ONPATH_FUNCTION(p) { if (p->ttl == 0) deep(p); " + h.body + " }\n"
			if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, err := funcbuild.Compile(t.Context(), source, funcbuild.ToWasm)
			if err != nil {
				t.Fatal(err)
			}
			s := newTestbed(t)
			good := onpath.WasmModule{Name: "dns", Code: dns, Config: onpath.Env{"port": "53"}}
			if err := s.set(good, onpath.WasmModule{Name: "hostile", Code: code, None: onpath.NoneBypass}); err != nil {
				t.Fatal(err)
			}
			if back := s.sends(20, 54); back != 20 {
				t.Errorf("%d of 20 came back", back)
			}
			st := s.status().Modules
			if st[0].Packets != 20 || st[0].Why != "" || st[1].Traps == 0 || !strings.Contains(st[1].Why, h.why) {
				t.Errorf("%+v", st)
			}
		})
	}
}

// TestNoCallBeforeStart: what says where things are is called beside the packets, and
// must not touch what is theirs.
func TestNoCallBeforeStart(t *testing.T) {
	source := t.TempDir() + "/early.c"
	text := `__attribute__((import_module("random/1"), import_name("u32"))) unsigned ask(void);
__attribute__((export_name("onpath_describe"))) void *early(void) { ask(); return 0; }
`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, err := funcbuild.Compile(t.Context(), source, funcbuild.ToWasm)
	if errors.Is(err, funcbuild.ErrLacking) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := newTestbed(t)
	if err := s.set(onpath.WasmModule{Name: "early", Code: code}); err == nil || !strings.Contains(err.Error(), "before it was started") {
		t.Errorf("%v", err)
	}
}
