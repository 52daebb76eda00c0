package ebpf_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/datapath/ebpf"
	"github.com/onpath/onpath/internal/netnsrun"
)

// TestPortsAreUsedAgain: more questions and connections than there are ports toward one end
// point find one each, from flows that have ended, while one that lives keeps its own; nobody
// ages anything. The kernel has none of these ports for its own sockets until Remove.
func TestPortsAreUsedAgain(t *testing.T) {
	const asked = 300
	c, gw := natTestbed(t, "gw")
	reserved := func() (text string) {
		c.in(gw.ns, func() error {
			b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_reserved_ports")
			text = strings.TrimSpace(string(b))
			return err
		})
		return text
	}
	c.in(gw.ns, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_reserved_ports", []byte("5000,32800-32900"), 0)
	})
	c.applyNAT(toServers())
	if got, want := reserved(), "5000,32768-32900"; got != want {
		t.Errorf("ports %q are reserved, must be %q", got, want)
	}
	seen := c.answersByPort()
	var lives net.Conn
	c.in(filepath.Join(c.dir, "i16"), func() (err error) {
		lives, err = net.Dial("tcp", "10.9.0.2:8080")
		return err
	})
	defer lives.Close()
	say := func() {
		lives.SetDeadline(time.Now().Add(time.Minute))
		if _, err := lives.Write([]byte("me")); err != nil {
			t.Fatal(err)
		}
		if _, err := lives.Read(make([]byte, 16)); err != nil {
			t.Fatalf("the connection that lives: %v", err)
		}
	}
	say()
	for n := range asked {
		if n%16 == 15 { // as if time had passed
			gw.dp.AgeTranslations(31)
			say()
		}
		if err := c.askFrom("i16", "udp", "10.9.0.2:53"); err != nil {
			t.Fatalf("question %d: %v", n, err)
		}
		if err := c.askFrom("i16", "tcp", "10.9.0.2:8080"); err != nil {
			t.Fatalf("connection %d: %v", n, err)
		}
	}
	for _, p := range seen() {
		if p < 32768 || p >= 32768+natPorts {
			t.Errorf("port %d is none of those for translations", p)
		}
	}
	c.must(gw.dp.Remove(t.Context()))
	if got, want := reserved(), "5000,32800-32900"; got != want {
		t.Errorf("after Remove ports %q are reserved, must be %q", got, want)
	}
	gw.dp = c.open(gw)
}

// TestForgedPacketsMoveNoPort: where an instance of another node begins connections, a RST whose
// sequence number does not fit, as anybody may send it, gives the port of one that rests to
// nobody. Nor does a RST that ended an earlier one by the same ports. And no SYN from outside
// keeps the port of one that has ended from others.
func TestForgedPacketsMoveNoPort(t *testing.T) {
	c, gw := natTestbed(t, "n2")
	c.applyNAT(toServers())
	connect := c.connections()
	ends, far := connect(5555)
	c.must(resetBy(far, ends))
	var heard *net.IPConn
	c.in(filepath.Join(c.dir, "i16"), func() (err error) {
		heard, err = net.ListenIP("ip4:tcp", &net.IPAddr{IP: net.IPv4(100, 64, 0, 9)})
		return err
	})
	defer heard.Close()
	lives, far := connect(5555)
	defer lives.Close()
	defer far.Close()
	says := func() {
		t.Helper()
		for _, way := range [][2]net.Conn{{lives, far}, {far, lives}} {
			way[1].SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := way[0].Write([]byte("me")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(way[1], make([]byte, 2)); err != nil {
				t.Fatalf("the connection that lives: %v", err)
			}
		}
	}
	says()
	answer := make([]byte, 64) // the SYN-ACK
	heard.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := heard.Read(answer); err != nil {
		t.Fatal(err)
	}
	c.forge(far.RemoteAddr(), rstFlag, binary.BigEndian.Uint32(answer[4:])+1<<31)
	for n := range 2 * natPorts {
		if n%8 == 0 { // as if time had passed
			gw.dp.AgeTranslations(31)
		}
		conn, far := connect(0)
		if err := resetBy(far, conn); err != nil {
			t.Fatalf("connection %d: %v", n, err)
		}
		c.forge(far.RemoteAddr(), synFlag, 0)
	}
	says()
}

// connections has the server listen; what it gives connects an instance with it by a port, 0
// being any.
func (c *testbed) connections() func(port int) (conn, far *net.TCPConn) {
	c.t.Helper()
	var l net.Listener
	c.in(c.server, func() (err error) {
		l, err = net.Listen("tcp4", "10.9.0.2:8081")
		return err
	})
	c.t.Cleanup(func() { l.Close() })
	return func(port int) (conn, far *net.TCPConn) {
		c.t.Helper()
		c.in(filepath.Join(c.dir, "i16"), func() error {
			d := net.Dialer{Timeout: time.Minute, LocalAddr: &net.TCPAddr{IP: net.IPv4(100, 64, 0, 9), Port: port}}
			dialled, err := d.Dial("tcp4", "10.9.0.2:8081")
			if err == nil {
				conn = dialled.(*net.TCPConn)
			}
			return err
		})
		l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
		accepted, err := l.Accept()
		c.must(err)
		return conn, accepted.(*net.TCPConn)
	}
}

// resetBy ends a connection by a RST, and waits until the other end has got it.
func resetBy(conn, other *net.TCPConn) error {
	if err := errors.Join(conn.SetLinger(0), conn.Close()); err != nil {
		return err
	}
	other.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := other.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("the connection must be reset, is %w", err)
	}
	return other.Close()
}

const synFlag, rstFlag = 2, 4

// forge sends a packet with the server's address and port to that of a translated connection.
func (c *testbed) forge(at net.Addr, flags byte, seq uint32) {
	c.t.Helper()
	to, b := at.(*net.TCPAddr), make([]byte, 20)
	binary.BigEndian.PutUint16(b, 8081)
	binary.BigEndian.PutUint16(b[2:], uint16(to.Port))
	binary.BigEndian.PutUint32(b[4:], seq)
	b[12], b[13] = 5<<4, flags
	c.in(c.server, func() error {
		conn, err := net.DialIP("ip4:tcp", &net.IPAddr{IP: net.IPv4(10, 9, 0, 2)}, &net.IPAddr{IP: to.IP})
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(b)
		return err
	})
}

// natPorts is how many ports natTestbed has for translations.
const natPorts = 64

// natTestbed has an instance at a node whose flows are translated, once applyNAT is done.
func natTestbed(t *testing.T, node string) (*testbed, *testbedNode) {
	was := ebpf.SetNATPorts(natPorts, natPorts/4)
	t.Cleanup(func() { ebpf.SetNATPorts(was[0], was[1]) })
	c := newTestbed(t)
	c.routed(node, 16, "100.64.0.9/32")
	c.instances[0].Own, c.instances[0].Routes = []netip.Addr{netip.MustParseAddr("100.64.0.9")}, true
	return c, c.nodes["gw"]
}

// applyNAT applies a chain through the instance, whose own flows are translated.
func (c *testbed) applyNAT(chain onpath.Match) {
	c.t.Helper()
	c.apply(chain, func(cfg *onpath.DatapathConfig) {
		cfg.Tenants = []onpath.TenantLimits{{Name: "town"}}
		if cfg.Edge != nil {
			cfg.Edge.NAT = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}
		}
	}, element(16, 16))
}

// askFrom asks from an instance, and returns once an answer has come.
func (c *testbed) askFrom(instance, network, addr string) error {
	return netnsrun.Do(filepath.Join(c.dir, instance), func() error {
		conn, err := net.DialTimeout(network, addr, time.Minute)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Write([]byte("who")); err != nil {
			return err
		}
		_, err = io.ReadAtLeast(conn, make([]byte, 16), 1)
		return err
	})
}

// TestPortsAreOneFlows: flows that begin on two CPUs at once, and find ports that have rested,
// get no port in common.
func TestPortsAreOneFlows(t *testing.T) {
	const rounds, each = 400, 12
	c, gw := natTestbed(t, "gw")
	c.applyNAT(toServers())
	var server net.PacketConn
	c.in(c.server, func() (err error) {
		server, err = net.ListenPacket("udp4", "10.9.0.2:53")
		return err
	})
	defer server.Close()
	b := make([]byte, 64)
	for round := range rounds {
		var ready, sent sync.WaitGroup
		ready.Add(2)
		for range 2 {
			sent.Go(func() {
				err := netnsrun.Do(filepath.Join(c.dir, "i16"), func() error {
					var all []net.Conn
					var err error
					for range each {
						conn, e := net.Dial("udp4", "10.9.0.2:53")
						if err = errors.Join(err, e); e == nil {
							all = append(all, conn)
							defer conn.Close()
						}
					}
					ready.Done()
					ready.Wait()
					for _, conn := range all {
						_, e := conn.Write([]byte{byte(round >> 8), byte(round)})
						err = errors.Join(err, e)
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		sent.Wait()
		seen := map[netip.AddrPort]bool{}
		for len(seen) < 2*each {
			server.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // some find no port
			n, from, err := server.ReadFrom(b)
			if err != nil {
				break
			}
			at := from.(*net.UDPAddr).AddrPort()
			if n != 2 || int(b[0])<<8|int(b[1]) != round {
				continue // it is late
			}
			if seen[at] {
				t.Fatalf("round %d: two flows have port %d", round, at.Port())
			}
			seen[at] = true
		}
		gw.dp.AgeTranslations(31)
	}
}

// answersByPort answers questions at the server's port 53 and connections at its port 8080,
// and tells from which ports they came.
func (c *testbed) answersByPort() func() []uint16 {
	c.t.Helper()
	var udp net.PacketConn
	var tcp net.Listener
	c.in(c.server, func() (err error) {
		if udp, err = net.ListenPacket("udp4", "10.9.0.2:53"); err != nil {
			return err
		}
		tcp, err = net.Listen("tcp4", "10.9.0.2:8080")
		return err
	})
	c.t.Cleanup(func() { udp.Close(); tcp.Close() })
	came := make(chan uint16, 4096)
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			came <- from.(*net.UDPAddr).AddrPort().Port()
			udp.WriteTo(b[:n], from)
		}
	}()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			came <- conn.RemoteAddr().(*net.TCPAddr).AddrPort().Port()
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	return func() (ports []uint16) {
		for {
			select {
			case p := <-came:
				ports = append(ports, p)
			default:
				return ports
			}
		}
	}
}
