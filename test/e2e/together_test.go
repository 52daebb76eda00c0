package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A firewall that follows FTP by the kernel's own helper: of data connections it lets through
// what their control connection, which it has seen, agreed on.
const togetherChain = `
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: ftpwall}
spec:
  container:
    image: host
    command: [sh, -c, "nft -f /etc/wall && touch /run/ready && exec sleep infinity"]
    files:
      /etc/wall:
        content: |
          table ip wall {
            ct helper ftp { type "ftp" protocol tcp; }
            chain sees { type filter hook prerouting priority 0; tcp dport %[1]d ct helper set "ftp"; }
            chain passes {
              type filter hook forward priority 0; policy drop;
              ct state established,related accept
              tcp dport %[1]d accept
            }
          }
    attach: routed
    addresses: none
    capabilities: [NET_ADMIN]
  state: flow
  packets: keep
  health: {exec: [test, -e, /run/ready], every: 200ms}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: ftp}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{function: ftpwall, instances: 2, drain: 1s, together: %[2]s}]
`

// TestTogether: FTP, active and passive, through two instances of a stateful firewall. With
// ONPATH_SOAK fifty transfers, and without together, where about half of them fail.
func TestTogether(t *testing.T) {
	ctx := need(t, time.Minute)
	s := serveTCP(t, ftpServer)
	file := filepath.Join(t.TempDir(), "ftp.yaml")
	set := func(how string) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, togetherChain, s.port, how), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	soak, n := os.Getenv("ONPATH_SOAK") != "", 6
	if soak {
		n = 50
	}
	set("hosts")
	applyFile(ctx, t, file)
	active(ctx, t, "ftp")
	ready(ctx, t, 2)
	for i := range n {
		if err := ftpGet(t, s.port, i%2 == 0, 20*time.Second); err != nil {
			t.Errorf("transfer %d of %d, with together: hosts: %v", i+1, n, err)
		}
	}
	if !soak {
		return
	}
	set("flow")
	if err := testbed.Apply(ctx, file); err != nil {
		t.Fatal(err)
	}
	settled(ctx, t)
	failed := 0
	for i := range n {
		if ftpGet(t, s.port, i%2 == 0, 2*time.Second) != nil {
			failed++
		}
	}
	t.Logf("without together %d of %d transfers failed", failed, n)
	if failed < n/5 || failed > n*4/5 {
		t.Errorf("without together %d of %d transfers failed, must be about half", failed, n)
	}
}

// settled waits until the nodes have what was applied.
func settled(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := testbed.WaitFor(ctx, "the nodes have the change", 30*time.Second, func() (bool, error) {
		_, err := testbed.Onpath(ctx, "verify", "ftp")
		return err == nil, nil
	}); err != nil {
		t.Fatal(err)
	}
}

var ftpFile = strings.Repeat("a file of FTP's\n", 4096)

// ftpServer speaks what ftpGet asks for (RFC 959).
func ftpServer(c *net.TCPConn) {
	say := func(format string, args ...any) { fmt.Fprintf(c, format+"\r\n", args...) }
	say("220 ready")
	var passive net.Listener
	var to string
	for lines := bufio.NewScanner(c); lines.Scan(); {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "PASV":
			if doIn(testbed.Lab.NetNS("origin"), func() (err error) { passive, err = net.Listen("tcp4", ":0"); return err }) != nil {
				return
			}
			defer passive.Close()
			say("227 Entering Passive Mode (%s)", ftpAddress("10.9.0.2", passive.Addr()))
		case "PORT":
			to = ftpTarget(rest)
			say("200 PORT command successful")
		case "RETR":
			say("150 here it comes")
			if d, err := ftpData(passive, to, "origin", 20*time.Second); err != nil {
				say("425 no data connection: %v", err)
			} else {
				io.WriteString(d, ftpFile)
				d.Close()
				say("226 done")
			}
		case "QUIT":
			say("221 goodbye")
			return
		default:
			say("230 as you like")
		}
	}
}

// ftpGet fetches the file over connections of its own.
func ftpGet(t *testing.T, port int, activeMode bool, patience time.Duration) error {
	c, err := dialTCP(t, "10.9.0.2", port, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * patience))
	lines := bufio.NewReader(c)
	ask := func(code, command string) (string, error) {
		if command != "" {
			fmt.Fprintf(c, "%s\r\n", command)
		}
		line, err := lines.ReadString('\n')
		if err == nil && !strings.HasPrefix(line, code) {
			err = fmt.Errorf("%s: %s", command, strings.TrimSpace(line))
		}
		return line, err
	}
	if _, err = ask("220", ""); err != nil {
		return err
	}
	if _, err = ask("230", "USER anonymous"); err != nil {
		return err
	}
	var l net.Listener
	var to string
	if activeMode {
		in(t, "client", func() (err error) { l, err = net.Listen("tcp4", ":0"); return err })
		defer l.Close()
		_, err = ask("200", "PORT "+ftpAddress("10.1.0.2", l.Addr()))
	} else {
		var line string
		line, err = ask("227", "PASV")
		to = ftpTarget(line)
	}
	if err != nil {
		return err
	}
	if _, err = ask("150", "RETR file"); err != nil {
		return err
	}
	d, err := ftpData(l, to, "client", patience)
	if err != nil {
		return fmt.Errorf("data connection, active %v: %w", activeMode, err)
	}
	defer d.Close()
	d.SetDeadline(time.Now().Add(patience))
	got, err := io.ReadAll(d)
	if err == nil && string(got) != ftpFile {
		err = errors.New("another file came")
	}
	if err == nil {
		_, err = ask("226", "")
	}
	return err
}

// ftpData is the data connection: the one that comes to l, or to an address.
func ftpData(l net.Listener, to, host string, patience time.Duration) (c net.Conn, err error) {
	if l != nil {
		l.(*net.TCPListener).SetDeadline(time.Now().Add(patience))
		return l.Accept()
	}
	err = doIn(testbed.Lab.NetNS(host), func() (err error) { c, err = net.DialTimeout("tcp4", to, patience); return err })
	return c, err
}

func ftpAddress(ip string, a net.Addr) string {
	port := a.(*net.TCPAddr).Port
	return fmt.Sprintf("%s,%d,%d", strings.ReplaceAll(ip, ".", ","), port>>8, port&255)
}

var ftpNumbers = regexp.MustCompile(`(\d+),(\d+),(\d+),(\d+),(\d+),(\d+)`)

func ftpTarget(line string) string {
	m := ftpNumbers.FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	high, _ := strconv.Atoi(m[5])
	low, _ := strconv.Atoi(m[6])
	return net.JoinHostPort(strings.Join(m[1:5], "."), strconv.Itoa(high<<8|low))
}
