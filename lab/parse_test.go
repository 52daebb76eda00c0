package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
)

// wrong are files that Parse must refuse: where and with which words. A text
// without "hosts:" is a host's or a link's part, put into a frame that is right.
var wrong = []struct{ name, text, place, message string }{
	{"empty", "", "1:1", "the file is empty"},
	{"not YAML", "hosts: [", "1:1", "the YAML breaks off"},
	{"tab", "hosts:\n\ta: {}", "2:1", "cannot start any token"},
	{"binary", "hosts:\n\x00\x01", "2:1", "not a text file"},
	{"list", "- a\n- b", "1:1", "a list where a mapping is expected"},
	{"two documents", "hosts: {a: }\n---\nhosts: {b: }", "2:1", "a second document"},
	{"unknown key", "hosts: {a: }\nlinsk: []", "2:1", "unknown key \"linsk\"; did you mean links?"},
	{"no host", "switches: {s: }", "", "there is no host"},
	{"empty section", "hosts: {a: }\nlinks:", "2:7", "links: is empty"},
	{"twice the same host", "hosts:\n  a: {}\n  a: {}", "3:3", "\"a\" stands here twice; the first is in line 2"},
	{"host name", "hosts: {Client_1: }", "1:9", "\"Client_1\" is not a name"},
	{"long name", "hosts: {" + strings.Repeat("a", 32) + ": }", "1:9", "is not a name"},
	{"lab name", "name: ../etc\nhosts: {a: }", "1:7", "\"../etc\" is not a name"},
	{"host and switch", "hosts: {a: }\nswitches: {a: }", "2:12", "a host is called a too"},
	{"key of a host", "hosts: {a: {forward: on}}", "1:13", "unknown key \"forward\"; did you mean forwarding?"},
	{"not on or off", "hosts: {a: {forwarding: maybe}}", "1:25", "\"maybe\" is neither on nor off"},
	{"host is a list", "hosts: {a: [1]}", "1:12", "hosts.a: is a list where a mapping is expected"},
	{"interface without link", "hosts: {a: {interfaces: {eth0: []}}}", "1:26", "interface eth0 is on no link"},
	{"interface name", "hosts: {a: {interfaces: {eth/0: []}}}", "1:26", "\"eth/0\" is not an interface's name"},
	{"address without length", "hosts: {a: {interfaces: {lo: [10.0.0.1]}}}", "1:31", "\"10.0.0.1\" is not an address with its prefix length; write 10.1.0.2/24"},
	{"address of a network", "hosts: {a: {interfaces: {lo: [10.0.0.0/24]}}}", "1:31", "is the network itself; write a host's address, such as 10.0.0.1/24"},
	{"multicast address", "hosts: {a: {interfaces: {lo: [224.0.0.1/24]}}}", "1:31", "cannot be an interface's address"},
	{"mapped address", "hosts: {a: {interfaces: {lo: [\"::ffff:10.0.0.1/120\"]}}}", "1:31", "is not an address"},
	{"Ethernet address", link("a: x, b: y", "interfaces: {eth0: {mac: 01:00:5e:00:00:01}}"), "2:32", "not a host's Ethernet address"},
	{"same address", link("a: x, b: y", "interfaces: {eth0: [10.0.0.1/24]}", "interfaces: {eth0: [10.0.0.1/16]}"), "3:20", "10.0.0.1 is the address of x:eth0 too, on the same segment"},
	{"same address in a host", "hosts: {x: {interfaces: {eth0: [10.0.0.1/24], lo: [10.0.0.1/32]}}, y: }\nlinks: [{a: x, b: y}]", "1:47", "10.0.0.1 is the address of eth0 too"},
	{"IPv6 on a small MTU", link("a: x, b: y, mtu: 1000", "interfaces: {eth0: [\"fd00::1/64\"]}"), "2:20", "IPv6 needs an mtu of 1280"},
	{"routes word", "hosts: {a: {routes: none}}", "1:21", "\"none\" is not a way to get routes"},
	{"route without to", "hosts: {a: {routes: [{via: 10.0.0.1}]}}", "1:22", "does not say where to"},
	{"route without via", "hosts: {a: {routes: [{to: default}]}}", "1:22", "says neither via which address"},
	{"default without family", "hosts: {a: {routes: [{to: default, device: lo}]}}", "1:22", "default without via"},
	{"route of two families", "hosts: {a: {routes: [{to: 10.0.0.0/8, via: \"fd00::1\"}]}}", "1:22", "not of the same IP version"},
	{"host bits in a route", "hosts: {a: {routes: [{to: 10.0.0.1/8, device: lo}]}}", "1:22", "write 10.0.0.0/8"},
	{"route to nonsense", "hosts: {a: {routes: [{to: home, device: lo}]}}", "1:22", "\"home\" is not a prefix"},
	{"route via nobody", link("a: x, b: y", "interfaces: {eth0: [10.0.0.1/24]}, routes: [{to: default, via: 10.0.1.1}]"), "2:51", "no interface of x is in the network of 10.0.1.1"},
	{"route out of nothing", "hosts: {a: {routes: [{to: 10.0.0.0/8, device: eth7}]}}", "1:22", "a has no interface \"eth7\""},
	{"twice the same route", link("a: x, b: y", "interfaces: {eth0: [10.0.0.1/24]}, routes: [{to: default, via: 10.0.0.2}, {to: 0.0.0.0/0, via: 10.0.0.3}]"), "2:81", "there is another route to 0.0.0.0/0"},
	{"sysctl of the machine", "hosts: {a: {sysctls: {kernel.panic: 1}}}", "1:23", "\"kernel.panic\" is not a host's sysctl"},
	{"sysctl that climbs", "hosts: {a: {sysctls: {net/../kernel/panic: 1}}}", "1:23", "is not a host's sysctl"},
	{"mounts word", "hosts: {a: {mounts: none}}", "1:21", "\"none\" is neither private nor shared"},
	{"private path without mounts", "hosts: {a: {private: [/srv]}}", "1:9", "add mounts: private"},
	{"relative path", "hosts: {a: {mounts: private, share: [srv]}}", "1:38", "\"srv\" cannot be mounted on"},
	{"root as a path", "hosts: {a: {mounts: private, private: [/]}}", "1:40", "cannot be mounted on"},
	{"command without program", "hosts: {a: {commands: [{name: x}]}}", "1:24", "says nothing to run"},
	{"command as text", "hosts: {a: {commands: [{run: sleep 1}]}}", "1:30", "where a list is expected"},
	{"two commands of a name", "hosts: {a: {commands: [{run: [sleep]}, {run: [/bin/sleep]}]}}", "1:40", "another command of a is called sleep"},
	{"one end", link("a: x"), "4:9", "a link needs both ends"},
	{"unknown end", link("a: x, b: z"), "4:9", "there is no host or switch \"z\""},
	{"misspelt end", "hosts: {client: , server: }\nlinks: [{a: client, b: sever}]", "2:9", "did you mean server?"},
	{"link to itself", link("a: \"x:eth0\", b: \"x:eth1\""), "4:9", "both ends are at x"},
	{"interface on two links", link("a: \"x:eth0\", b: y}, {a: \"x:eth0\", b: y"), "4:30", "x:eth0 is on another link already, in line 4"},
	{"lo as an end", link("a: \"x:lo\", b: y"), "4:13", "lo is on no link"},
	{"port of a switch", "hosts: {x: }\nswitches: {s: }\nlinks: [{a: x, b: \"s:1\"}]", "3:19", "is not an interface's name"},
	{"named port of a switch", "hosts: {x: }\nswitches: {s: }\nlinks: [{a: x, b: \"s:p1\"}]", "3:9", "s is a switch, whose ports have no names"},
	{"rate without unit", link("a: x, b: y, rate: 100"), "4:28", "\"100\" is not a bit rate (write 1Gbit"},
	{"rate in bytes", link("a: x, b: y, rate: 100MB"), "4:28", "is not a bit rate"},
	{"rate of nothing", link("a: x, b: y, rate: 0bit"), "4:28", "0bit is out of range"},
	{"delay without unit", link("a: x, b: y, delay: 10"), "4:29", "\"10\" is not a duration"},
	{"negative delay", link("a: x, b: y, delay: -1ms"), "4:29", "is not a duration"},
	{"long delay", link("a: x, b: y, delay: 1h"), "4:29", "1h is longer than 1m0s"},
	{"jitter above delay", link("a: x, b: y, delay: 1ms, jitter: 2ms"), "4:9", "a jitter of 2ms is more than the delay of 1ms"},
	{"loss without percent", link("a: x, b: y, loss: 0.1"), "4:28", "\"0.1\" is not a share of frames"},
	{"loss above all", link("a: x, b: y, loss: 101%"), "4:28", "is not a share of frames"},
	{"loss of NaN", link("a: x, b: y, loss: NaN%"), "4:28", "is not a share of frames"},
	{"queue without rate", link("a: x, b: y, queue: 1Mi"), "4:9", "a queue without a rate"},
	{"tiny queue", link("a: x, b: y, rate: 1Mbit, queue: 100"), "4:42", "out of range"},
	{"too much in flight", link("a: x, b: y, rate: 100Gbit, delay: 10s"), "4:9", "keeps 125000 MB on the way"},
	{"mtu", link("a: x, b: y, mtu: 9k"), "4:27", "\"9k\" is not an MTU"},
	{"seed", link("a: x, b: y, seed: x"), "4:28", "is not a whole number"},
	{"key in back", link("a: x, b: y, back: {mtu: 1}"), "4:29", "unknown key \"mtu\""},
	{"merge key", link("<<: {a: x}, b: y"), "4:10", "unknown key \"<<\""},
}

// link is a file of the hosts x and y, which have the given parts, and a link.
// The hosts are in lines 2 and 3, the link in line 4.
func link(text string, hosts ...string) string {
	parts := append(hosts, "", "")
	return fmt.Sprintf("hosts:\n  x: {%s}\n  y: {%s}\nlinks: [{%s}]", parts[0], parts[1], text)
}

func TestWrongFiles(t *testing.T) {
	for _, c := range wrong {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(c.text), "f.yaml")
			if err == nil {
				t.Fatal("was taken")
			}
			var list onpath.Errors
			if !errors.As(err, &list) || onpath.CodeOf(err) != onpath.CodeInvalid {
				t.Fatalf("%T %v", err, err)
			}
			place := "f.yaml"
			if c.place != "" {
				place += ":" + c.place
			}
			for _, e := range list {
				if e.Place == place && strings.Contains(e.Error(), c.message) {
					return
				}
			}
			t.Errorf("no error at %s with %q in:\n%v", place, c.message, err)
		})
	}
}

// TestOneMistakeOneError: what follows from a mistake is not told beside it.
func TestOneMistakeOneError(t *testing.T) {
	_, err := Parse(strings.NewReader(link("a: x, b: y, delay: 15, jitter: 1ms")), "f.yaml")
	var list onpath.Errors
	if !errors.As(err, &list) || len(list) != 1 || !strings.Contains(err.Error(), `"15" is not a duration`) {
		t.Errorf("%v", err)
	}
}

func TestHugeFiles(t *testing.T) {
	start := processorTime(t)
	for _, text := range []string{
		"hosts:\n" + strings.Repeat("  # nothing\n", 1<<18),
		"hosts: " + strings.Repeat("[", 100_000),
		"hosts:\n" + string(bytes.Repeat([]byte("  a: {x: 1}\n"), 50_000)),
		"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nhosts: *b",
	} {
		_, err := Parse(strings.NewReader(text), "f.yaml")
		var list onpath.Errors
		if !errors.As(err, &list) || len(list) > maxErrors {
			t.Errorf("%.20q…: %T", text, err)
		}
	}
	if d := processorTime(t) - start; d > 5*time.Second {
		t.Errorf("took %v of the processor", d)
	}
}

// processorTime is what this process has used, whatever runs beside it.
func processorTime(t *testing.T) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestParse(t *testing.T) {
	topology := parse(t, `
name: all
hosts:
  a:
    interfaces: {eth1: [10.0.0.1/24, "fd00::1/64"]}
    routes: [auto, {to: 192.0.2.1, via: 10.0.0.2}]
    forwarding: on
  b:
switches: {s: {mtu: 1400}}
links:
- {a: a, b: "b:up", rate: 10Mbit, delay: 5ms, jitter: 1ms, loss: 0.5%, seed: 3, offloads: off, back: {rate: 1Mbit, loss: 0%}}
- {a: "a:eth1", b: s, mtu: 9000}
- {a: s, b: b}`)
	l := topology.Links[0]
	if l.Name() != "a:eth0-b:up" || l.Seed != 3 || l.Offloads || l.MTU != 1500 {
		t.Errorf("link %s: %+v", l.Name(), l)
	}
	if want := (Shape{Rate: 10e6, Delay: onpath.Duration(5 * time.Millisecond), Jitter: onpath.Duration(time.Millisecond), Loss: 0.005, Queue: 128 << 10}); l.There != want {
		t.Errorf("there: %+v", l.There)
	}
	if l.Back.Rate != 1e6 || l.Back.Loss != 0 || l.Back.Delay != l.There.Delay {
		t.Errorf("back: %+v", l.Back)
	}
	if n := topology.Links[2].Name(); n != "s-b:eth0" {
		t.Errorf("third link is %s", n)
	}
	a := topology.Hosts[0]
	if !a.AutoRoutes || !a.Forwarding || len(a.Routes) != 1 || a.Routes[0].To.String() != "192.0.2.1/32" || len(a.Interfaces) != 2 || a.Interfaces[0].Name != "eth0" {
		t.Errorf("host a: %+v", a)
	}
}

// TestAutoRoutes: a ring of four routers with one slow side, and a host that
// is in two networks but does not forward.
func TestAutoRoutes(t *testing.T) {
	topology := parse(t, `
hosts:
  r1: {forwarding: on, routes: auto, interfaces: {n: [10.12.0.1/24, "fd12::1/64"], w: [10.14.0.1/24], lo: [192.0.2.1/32]}}
  r2: {forwarding: on, routes: auto, interfaces: {n: [10.12.0.2/24, "fd12::2/64"], e: [10.23.0.2/24, "fd23::2/64"]}}
  r3: {forwarding: on, routes: auto, interfaces: {e: [10.23.0.3/24, "fd23::3/64"], s: [10.34.0.3/24], lo: [192.0.2.3/32]}}
  r4: {forwarding: on, routes: auto, interfaces: {s: [10.34.0.4/24], w: [10.14.0.4/24]}}
  bad: {interfaces: {eth0: [10.14.0.9/24], eth1: [10.34.0.9/24]}}
switches: {w: , s: }
links:
- {a: "r1:n", b: "r2:n"}
- {a: "r2:e", b: "r3:e"}
- {a: "r3:s", b: s, delay: 10ms}
- {a: "r4:s", b: s}
- {a: "r4:w", b: w}
- {a: "r1:w", b: w}
- {a: bad, b: w}
- {a: "bad:eth1", b: s}`)
	for _, c := range []struct{ host, want string }{
		{"r1", "10.23.0.0/24 via 10.12.0.2 n, 10.34.0.0/24 via 10.14.0.4 w, 192.0.2.3/32 via 10.12.0.2 n, fd23::/64 via fd12::2 n"},
		{"r4", "10.12.0.0/24 via 10.14.0.1 w, 192.0.2.1/32 via 10.14.0.1 w, 10.23.0.0/24 via 10.14.0.1 w, 192.0.2.3/32 via 10.14.0.1 w"},
	} {
		var got []string
		for _, r := range topology.AutoRoutes(topology.Host(c.host)) {
			got = append(got, fmt.Sprint(r.To, " via ", r.Via, " ", r.Device))
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.host, s, c.want)
		}
	}
}

// TestExamples: every topology that is shipped is right.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../examples/lab/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no examples found", err)
	}
	for _, f := range files {
		topology, err := ParseFile(f)
		if err != nil {
			t.Error(err)
		} else if topology.Name+".yaml" != filepath.Base(f) {
			t.Errorf("%s is called %s", f, topology.Name)
		}
	}
	if _, err := ParseFile(filepath.Join(t.TempDir(), "none.yaml")); onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing file: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range wrong {
		f.Add(c.text)
	}
	if b, err := os.ReadFile("../examples/lab/quickstart.yaml"); err == nil {
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		topology, err := Parse(strings.NewReader(text), "f.yaml")
		if err != nil {
			return
		}
		for _, h := range topology.Hosts {
			topology.AutoRoutes(h)
		}
	})
}
